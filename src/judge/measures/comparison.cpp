#include "judge/measures/comparison.hpp"

#include <algorithm>
#include <cstring>

#include "base/interruption.hpp"
#include "base/threads/parallel.hpp"
#include "judge/measures/elements.hpp"
#include "numeric/within.hpp"

namespace kda_check::judge {

namespace {

constexpr std::size_t piece_bytes = std::size_t{128} << 10;  // of each side: both fit in a core's cache
constexpr std::size_t heads_at_once = 4;

}  // namespace

Comparison::Comparison(std::string_view name, const tensor::Tensor& got, bool state_v_first,
                       bool has_magnitude, const ComparisonOptions& options)
    : Comparison(name, got.shape(), got.dtype(), state_v_first, options) {
  got_ = got.data(), has_magnitude_ = has_magnitude;
  cells_.reach(size_ / axes_.row_stride * axes_.windows_per_row);
}

Comparison::Comparison(std::string_view name, const tensor::Shape& shape, numeric::DType dtype,
                       bool state_v_first, const ComparisonOptions& options)
    : dtype_(dtype),
      size_(tensor::element_count(shape)),
      options_(options),
      axes_(name, shape, state_v_first),
      cells_(axes_.has_tokens ? axes_.windows_per_row : 0, axes_.has_heads ? axes_.heads : 0,
             numeric::format_of(dtype_).smallest_step()),
      parts_(static_cast<std::size_t>(std::max(1, options.threads))) {
  if (options.series && axes_.has_tokens)
    series_ = {size_ / axes_.row_stride, axes_.tokens, axes_.heads,
               std::vector<TokenErrors>(size_ / axes_.run)};
}

/// Calls body(begin, end, worker) in parallel for parts that share no cell and have `least` elements, where
/// there are as many.
template <class Body>
void Comparison::over_tasks(std::size_t begin, std::size_t count, std::size_t least, Body body) {
  const std::size_t end = begin + count;
  std::vector<std::size_t> cuts{begin};
  while (cuts.back() < end) {
    std::size_t stop = cuts.back();
    do stop = std::min(end, axes_.cells_end(stop));
    while (stop < end && stop - cuts.back() < least);
    cuts.push_back(stop);
  }
  parallel_for(cuts.size() - 1, options_.threads,
               [&](std::size_t task, int worker) { body(cuts[task], cuts[task + 1], worker); });
}

/// Calls body(run, head, cells) for the runs of a range in order, `cells` being the row of the table they
/// belong to; it returns how many elements it has dealt with: the run, or several runs of that row.
template <class Body>
void Comparison::over_runs(std::size_t begin, std::size_t end, Body body) {
  for (std::size_t at = begin; at < end;) {
    check_interruption();
    Cell* const cells = cells_.row(axes_.cell_row(at));
    const std::size_t row_end = std::min(end, axes_.cell_row_end(at));
    std::size_t head = axes_.head(at), lane = at % axes_.run;
    while (at < row_end) {
      const std::size_t done = body(Run{at, std::min(row_end - at, axes_.run - lane), lane}, head, cells);
      head = (head + (lane + done) / axes_.run) % axes_.heads;
      lane = 0;
      at += done;
    }
  }
}

template <class Storage>
void Comparison::add_wide(std::size_t begin, std::size_t end, const ExpectedValues& expected,
                          Measures& part) {
  const auto* const elements = reinterpret_cast<const Storage*>(got_);
  ElementCounter counter(options_, axes_, has_magnitude_, part);
  over_runs(begin, end, [&](const Run& run, std::size_t head, Cell* cells) {
    counter.count(run, elements + run.begin, WideValues{expected.from(run.begin - begin)}, cells[head],
                  token_errors(run.begin));
    return run.count;
  });
}

void Comparison::add(std::size_t begin, std::size_t count, const ExpectedValues& expected) {
  numeric::visit_storage(dtype_, [&](auto tag) {
    over_tasks(begin, count, 1, [&](std::size_t task_begin, std::size_t task_end, int worker) {
      add_wide<decltype(tag)>(task_begin, task_end, expected.from(task_begin - begin),
                              parts_[static_cast<std::size_t>(worker)]);
    });
  });
}

void Comparison::add_run(std::size_t begin, const ExpectedValues& expected, int worker) {
  numeric::visit_storage(dtype_, [&](auto tag) {
    add_wide<decltype(tag)>(begin, begin + axes_.run, expected, parts_[static_cast<std::size_t>(worker)]);
  });
}

/// Whole runs of several heads, where all of them are equal; returns how many elements these are, or 0.
template <class Storage>
std::size_t Comparison::add_equal_heads(std::size_t available, std::size_t head, const Storage* got,
                                        const Storage* expected, bool squarable, Cell* cells,
                                        Measures& part) const {
  const std::size_t count = heads_at_once * axes_.run;
  if (available < count || head + heads_at_once > axes_.heads ||
      std::memcmp(got, expected, count * sizeof(Storage)) != 0)
    return 0;
  ElementCounter(options_, axes_, false, part).count_equal(got, count);
  add_squares<heads_at_once>(got, axes_.run, squarable, cells + head);
  return count;
}

/// A range that one thread sees; the pointers are of its first elements.
template <class Storage, class Element>
void Comparison::add_stored(std::size_t begin, std::size_t count, const Storage* got, const Element* expected,
                            Measures& part) {
  const bool squarable = std::is_same_v<Storage, Element> && are_squarable(got, count);
  const bool may_be_equal =
      std::is_same_v<Storage, Element> && (squarable || numeric::all_finite(got, count));
  ElementCounter counter(options_, axes_, false, part);
  over_runs(begin, begin + count, [&](const Run& run, std::size_t head, Cell* cells) {
    const std::size_t offset = run.begin - begin;
    TokenErrors* const token = token_errors(run.begin);
    if constexpr (std::is_same_v<Storage, Element>) {
      if (may_be_equal && token == nullptr) {
        if (run.lane == 0)
          if (const std::size_t done = add_equal_heads(count - offset, head, got + offset, expected + offset,
                                                       squarable, cells, part))
            return done;
        if (std::memcmp(got + offset, expected + offset, run.count * sizeof(Storage)) == 0) {
          counter.count_equal(got + offset, run.count);
          add_squares<1>(got + offset, run.count, squarable, cells + head);
          return run.count;
        }
      }
    }
    counter.count(run, got + offset, StoredValues<Element>{expected + offset}, cells[head], token);
    return run.count;
  });
}

void Comparison::add_all(const tensor::Tensor& expected) {
  const auto element_of = [](const std::byte* data, numeric::DType dtype) {
    return [data, bytes = numeric::format_of(dtype).bytes](std::size_t begin, std::size_t, std::byte*) {
      return data + begin * bytes;
    };
  };
  add_sources(0, size_, element_of(got_, dtype_), expected.dtype(),
              element_of(expected.data(), expected.dtype()));
}

void Comparison::add_read(std::size_t begin, std::size_t count, const ElementSource& got,
                          numeric::DType expected_dtype, const ElementSource& expected) {
  if (count == 0) return;
  const std::size_t end = begin + count;
  cells_.reach(axes_.cell_row(end - 1) + 1);
  add_sources(begin, count, got, expected_dtype, expected);
  cells_.fold(axes_.cell_row(end - 1) + (axes_.cell_row_end(end - 1) == end ? 1 : 0));
}

void Comparison::add_sources(std::size_t begin, std::size_t count, const ElementSource& got,
                             numeric::DType expected_dtype, const ElementSource& expected) {
  struct Room {
    tensor::AlignedBytes got, expected;
  };
  std::vector<Room> rooms(parts_.size());
  numeric::visit_storage(dtype_, [&](auto got_tag) {
    numeric::visit_storage(expected_dtype, [&](auto expected_tag) {
      using Storage = decltype(got_tag);
      using Element = decltype(expected_tag);
      constexpr std::size_t piece = piece_bytes / std::max(sizeof(Storage), sizeof(Element));
      const std::size_t step = axes_.run < piece ? piece / axes_.run * axes_.run : piece;  // whole runs
      over_tasks(begin, count, piece, [&](std::size_t task_begin, std::size_t task_end, int worker) {
        Room& room = rooms[static_cast<std::size_t>(worker)];
        if (room.got.size() == 0)
          room = {tensor::AlignedBytes(piece_bytes), tensor::AlignedBytes(piece_bytes)};
        for (std::size_t at = task_begin; at < task_end;) {
          const std::size_t length = std::min(step, task_end - at);
          add_stored(at, length, reinterpret_cast<const Storage*>(got(at, length, room.got.data())),
                     reinterpret_cast<const Element*>(expected(at, length, room.expected.data())),
                     parts_[static_cast<std::size_t>(worker)]);
          at += length;
        }
      });
    });
  });
}

Measures Comparison::finish() {
  Measures total;
  total.has_magnitude = has_magnitude_;
  total.elements = size_;
  for (const Measures& part : parts_) {
    total.finite += part.finite;
    total.undecided += part.undecided, total.overflowed += part.overflowed;
    for (const auto& [index, strand] : part.strands) total.strands[index].add(strand);
    total.differing += part.differing;
    total.differing_bits += part.differing_bits;
    total.outside += part.outside;
    total.got_all_zero = total.got_all_zero && part.got_all_zero;
    total.expected_all_zero = total.expected_all_zero && part.expected_all_zero;
    for (std::size_t got = 0; got < class_count; ++got)
      for (std::size_t expected = 0; expected < class_count; ++expected)
        total.classes[got][expected] += part.classes[got][expected];
    for (Extreme Measures::*const extreme : {&Measures::max_ulp, &Measures::ulp_error, &Measures::scaled_ulp,
                                             &Measures::max_abs, &Measures::max_rel, &Measures::worst_excess})
      (total.*extreme).merge(part.*extreme);
    total.distances.merge(part.distances);
    total.worst.insert(total.worst.end(), part.worst.begin(), part.worst.end());
    total.class_mismatches.insert(total.class_mismatches.end(), part.class_mismatches.begin(),
                                  part.class_mismatches.end());
  }
  std::sort(total.worst.begin(), total.worst.end(), ElementCounter::before);
  if (total.worst.size() > options_.worst) total.worst.resize(options_.worst);
  std::ranges::sort(total.class_mismatches, {}, &Point::element);
  if (total.class_mismatches.size() > ElementCounter::listed_mismatches)
    total.class_mismatches.resize(ElementCounter::listed_mismatches);
  cells_.fold_all();
  cells_.conclude(total);
  return total;
}

}  // namespace kda_check::judge
