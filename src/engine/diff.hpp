// `diff`: the tensors of two files, or of two expected groups. Nothing is run.
#pragma once

#include <functional>
#include <string>

#include "fixture/fixture.hpp"
#include "plan/request.hpp"
#include "report/document.hpp"

namespace kda_check::engine {

struct DiffRequest {
  std::string got, reference;  ///< FILE or FILE:GROUP, or two folders
  plan::Names tensors;         ///< empty: all
  plan::Judging judging;
  fixture::ReadLimits limits;
  int threads = 1;
  bool draw = false;
};

/// Without limits of the user's every difference fails, that of a bit of a zero or of a NaN and that of an
/// element type too. One case for each pair
/// of files; a file of a folder without its partner is a case that fails. Throws Error{usage}; what cannot be
/// read is a failure of the document.
/// The document, empty at first, holds the pairs that are done at any time, also when Interrupted is thrown.
void diff(const DiffRequest& request, report::Document& document,
          const std::function<void(const std::string&)>& warning,
          const std::function<void(const std::string&)>& progress);

}  // namespace kda_check::engine
