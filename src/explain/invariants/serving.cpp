#include "explain/invariants/serving.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "explain/invariants/rearrangement.hpp"
#include "kda/problem/shapes.hpp"
#include "numeric/random.hpp"

namespace kda_check::explain {

namespace {

using kda::PaddingSlots;
using kda::Problem;
using kda::Sequence;
using kda::Tensors;
using tensor::Tensor;

/// Most tokens of a draft, and the slots of a request for them; one more keeps the state of a prefix.
constexpr std::size_t longest_draft = 8;

/// A request on its way.
struct Request {
  Sequence tokens;
  std::size_t done = 0;            ///< tokens answered
  std::vector<std::size_t> slots;  ///< the first is where its state is, but for drafts
  std::size_t accepted = 1;        ///< its state is in slot number accepted - 1 of these
  bool is_new = false;             ///< it has no state yet, and its slot that of somebody else

  std::size_t left() const { return tokens.length() - done; }
};

/// One row of a call: a request with its next tokens, which may have wrong ones behind them; or padding.
struct Row {
  Request* request;
  Sequence next;
  std::size_t wrong = 0;
  std::vector<std::size_t> slots = {};  ///< of a call for drafts; else its state stays where it is
};

class Server {
 public:
  Server(const Problem& requests, const Tensors& expected, const Subject& subject, const Service& service)
      : requests_(requests),
        subject_(subject),
        service_(service),
        random_(service.seed, 0x5e17),
        result_{expected.at("o").clone(), expected.at("final_state").clone(), {}, {}},
        bytes_(expected.at("final_state").bytes() / requests.dimensions().N) {
    if (requests.initial_state->dtype() != expected.at("final_state").dtype())
      throw Error(ErrorKind::internal, "requests are served with states of another type than is expected");
    // What nobody answers must not look like an answer.
    std::memset(result_.o.data(), 0xff, result_.o.bytes());
    std::memset(result_.final_state.data(), 0xff, result_.final_state.bytes());
    make_pool(expected.at("final_state"));
  }

  Served run() {
    for (const Sequence& sequence : requests_.sequences()) waiting_.push_back({sequence, 0, {}, 1});
    if (service_.in_any_order) std::ranges::reverse(waiting_);
    const std::size_t most = service_.in_any_order ? 2 : waiting_.size();
    while (!waiting_.empty() || !running_.empty()) {
      while (!waiting_.empty() && running_.size() < most) admit();
      step();
      retire();
    }
    return std::move(result_);
  }

 private:
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_.below(drawn_++, count)); }
  bool has_drafts() const { return service_.drafted > 0 || service_.prefix_hit; }
  std::size_t slots_of_one() const { return has_drafts() ? longest_draft + 1 : 1; }

  void make_pool(const Tensor& states) {
    // Slot 0 is nobody's where it means padding.
    const std::size_t first = service_.padding == PaddingSlots::nonpositive ? 1 : 0;
    const std::size_t used = requests_.dimensions().N * slots_of_one();
    tensor::Shape shape = states.shape();
    shape[0] = first + used + (service_.other_slots ? used + 5 : 1);
    pool_ = Tensor("state_pool", states.dtype(), shape);
    for (std::size_t i = 0; i < pool_.size(); ++i) pool_.set(i, 3.0 + static_cast<double>(i % 7));
    for (std::size_t slot = first; slot < first + used; ++slot) free_.push_back(slot);
    if (!service_.other_slots) return;
    free_.resize(shape[0] - first);
    std::iota(free_.begin(), free_.end(), first);
    for (std::size_t i = free_.size(); i > 1; --i) std::swap(free_[i - 1], free_[below(i)]);
  }

  std::byte* slot(std::size_t number) { return pool_.data() + number * bytes_; }

  void admit() {
    Request request = waiting_.front();
    waiting_.pop_front();
    for (std::size_t i = 0; i < slots_of_one(); ++i) {
      request.slots.push_back(free_.front());
      free_.pop_front();
    }
    const std::byte* const state = requests_.initial_state->data() + request.tokens.index * bytes_;
    request.is_new = service_.new_rows && request.tokens.index % 2 == 0 && request.left() > 0 &&
                     std::all_of(state, state + bytes_, [](std::byte one) { return one == std::byte{0}; });
    if (!request.is_new) std::memcpy(slot(request.slots[0]), state, bytes_);
    running_.push_back(std::move(request));
  }

  void retire() {
    for (const Request& request : running_) {
      if (request.left() > 0) continue;
      std::memcpy(result_.final_state.data() + request.tokens.index * bytes_,
                  slot(request.slots[request.accepted - 1]), bytes_);
      // Who comes next has these.
      free_.insert(free_.begin(), request.slots.begin(), request.slots.end());
    }
    std::erase_if(running_, [](const Request& request) { return request.left() == 0; });
  }

  /// Tokens of the next call: of the prompt, or one.
  std::size_t next_tokens(const Request& request) {
    const std::size_t length = request.tokens.length();
    const std::size_t prompt = length - std::min(service_.generated(), length - 1);
    if (request.done >= prompt) return 1;
    const std::size_t left = prompt - request.done;
    return service_.in_parts ? std::min(left, 1 + below(subject_.chunk_size + 1)) : left;
  }

  void step() {
    std::vector<Row> rows, drafts;
    for (Request& request : running_) {
      if (request.left() == 0) continue;
      const std::size_t count = next_tokens(request);
      const Sequence next = request.tokens.part(request.done, request.done + count);
      // A step without drafts behind two accepted tokens, whose state is in no first slot: one at least.
      const bool is_wanted = result_.single_steps == 0, is_single = is_wanted && request.accepted > 1;
      const bool begins = request.done == 0 && !(is_wanted && request.left() == 3);  // with a draft, else
      if (service_.drafted == 0 || count > 1 || begins) {
        rows.push_back({&request, next});
        continue;
      }
      const std::size_t accepted = is_single ? 1
                                   : is_wanted && request.left() > 2
                                       ? 2
                                       : 1 + below(std::min(longest_draft, request.left()));
      const std::size_t wrong = is_single ? 0 : below(longest_draft - accepted + 1);
      result_.single_steps += request.accepted > 1 && accepted + wrong == 1;
      drafts.push_back({&request,
                        request.tokens.part(request.done, request.done + accepted),
                        wrong,
                        {request.slots.begin(), request.slots.begin() + longest_draft}});
    }
    if (!rows.empty()) call(rows, 0);
    for (const Row& row : rows) row.request->done += row.next.length();
    if (!drafts.empty()) call(drafts, longest_draft);
    for (const Row& row : drafts)
      row.request->done += row.next.length(), row.request->accepted = row.next.length();
    if (service_.prefix_hit)
      for (const Row& row : rows) answer_again_from_prefix(*row.request);
  }

  /// The state of a prefix stays in the last column, where nobody stores to: from there twice.
  void answer_again_from_prefix(Request& request) {
    if (request.left() < 2) return;
    const std::size_t count = std::min(request.left(), longest_draft);
    std::swap(request.slots.front(), request.slots.back());
    request.accepted = request.slots.size();
    const Sequence next = request.tokens.part(request.done, request.done + count);
    for (int time = 0; time < 2; ++time) {
      std::vector<Row> rows{{&request, next, 0, request.slots}};
      call(rows, request.slots.size());
    }
    request.done += count, request.accepted = count;
  }

  /// `columns`: of the table; 0 for states that stay in their slots.
  void call(const std::vector<Row>& rows, std::size_t columns) {
    kda::SlotTable table;
    table.columns = columns, table.padding = service_.padding;
    std::vector<Sequence> pieces;
    std::vector<std::int64_t> ends{0};
    const auto pad = [&] {
      if (service_.padding == PaddingSlots::none) return;
      pieces.push_back(requests_.sequences().front().part(0, 1));
      pieces.back().index = 0;
      ends.push_back(ends.back() + 1);
      const bool nonpositive = service_.padding == PaddingSlots::nonpositive;
      // Behind drafts by the number that is accepted; the slots are then those of the row before.
      const bool by_count = nonpositive && columns > 0 && !table.accepted.empty();
      for (std::size_t i = 0; i < std::max<std::size_t>(1, columns); ++i)
        table.indices.push_back(by_count      ? table.indices[table.indices.size() - columns]
                                : nonpositive ? 0
                                              : -1);
      if (columns > 0) table.accepted.push_back(by_count ? 0 : 1);
      if (service_.flags) table.has_state.push_back(0);
    };
    // Of a request that waits: the slots are nobody's yet.
    const auto add_empty = [&] {
      if (!service_.empty_rows || free_.empty()) return;
      ends.push_back(ends.back());
      for (std::size_t i = 0; i < std::max<std::size_t>(1, columns); ++i)
        table.indices.push_back(static_cast<std::int64_t>(free_[i % free_.size()]));
      if (columns > 0) table.accepted.push_back(1);
      if (service_.flags) table.has_state.push_back(1);
    };
    std::vector<std::size_t> sequences;  // of the rows
    for (const Row& row : rows) {
      pad();
      add_empty();
      sequences.push_back(ends.size() - 1);
      const Sequence& all = row.request->tokens;
      pieces.push_back(row.next);
      if (service_.flags) table.has_state.push_back(!row.request->is_new || row.request->done > 0);
      // Wrong tokens: those of the beginning of the request, one by one.
      for (std::size_t i = 0; i < row.wrong; ++i)
        pieces.push_back(all.part(i % all.length(), i % all.length() + 1));
      ends.push_back(ends.back() + static_cast<std::int64_t>(row.next.length() + row.wrong));
      if (columns == 0) {
        table.indices.push_back(static_cast<std::int64_t>(row.request->slots[row.request->accepted - 1]));
      } else {
        for (const std::size_t number : row.slots) table.indices.push_back(static_cast<std::int64_t>(number));
        table.accepted.push_back(static_cast<std::int64_t>(row.request->accepted));
      }
    }
    pad();
    Problem tokens = excerpt(requests_, pieces, Layout::packed);
    tokens.initial_state.reset();
    tokens.cu_seqlens = ends;
    tokens.validate();
    const Problem asked = kda::ordinary_form({std::move(tokens), pool_.clone(), table});
    Tensors answer = kda::of_call(*asked.pool, subject_.solve(asked, kda::Pass::forward, Fill::whatever));
    take(*asked.pool, answer, rows, sequences);
  }

  /// `sequences`: the number of each row's in the call.
  void take(const kda::PoolCall& call, Tensors& answer, const std::vector<Row>& rows,
            const std::vector<std::size_t>& sequences) {
    const Tensor o = answer.at("o").converted_to(result_.o.dtype());
    const std::size_t row_bytes = o.bytes() / o.shape()[1];
    for (std::size_t n = 0; n < rows.size(); ++n)
      std::memcpy(result_.o.data() + kda::row_of(requests_, rows[n].next, 0) * row_bytes,
                  o.data() + static_cast<std::size_t>(call.problem.cu_seqlens[sequences[n]]) * row_bytes,
                  rows[n].next.length() * row_bytes);
    Tensor after = std::move(answer.at("state_pool"));
    const auto is_changed = [&](std::size_t number) {
      return std::memcmp(after.data() + number * bytes_, slot(number), bytes_) != 0;
    };
    if (!result_.changed_slots && std::ranges::any_of(kda::slots_left_alone(call), is_changed)) {
      Tensor kept = after.clone();
      for (const std::size_t number : kda::slots_left_alone(call))
        std::memcpy(kept.data() + number * bytes_, slot(number), bytes_);
      result_.changed_slots = after.clone(), result_.kept_slots = std::move(kept);
    }
    pool_ = std::move(after);
  }

  const Problem& requests_;
  const Subject& subject_;
  const Service service_;
  const numeric::Random random_;
  std::uint64_t drawn_ = 0;
  Served result_;
  const std::size_t bytes_;  ///< of a slot
  Tensor pool_;
  std::deque<std::size_t> free_;
  std::deque<Request> waiting_;
  std::vector<Request> running_;
};

}  // namespace

Service Service::whole(std::uint64_t seed) {
  const numeric::Random random(seed, 0xa11);
  Service service;
  service.seed = seed;
  service.in_parts = service.other_slots = service.in_any_order = true;
  service.flags = service.new_rows = true;
  const auto generated = static_cast<std::size_t>(1 + random.below(0, 20));
  (random.below(1, 3) > 0 ? service.drafted : service.decoded) = generated;
  // Kinds whose rows differ.
  constexpr PaddingSlots paddings[] = {PaddingSlots::none, PaddingSlots::negative, PaddingSlots::nonpositive};
  service.padding = paddings[seed % std::size(paddings)];
  service.empty_rows = seed % 2 == 0;
  return service;
}

std::size_t Service::generated() const {
  return std::max({decoded, drafted, prefix_hit ? longest_draft : 0});
}

Problem as_requests(const Problem& problem, numeric::DType states) {
  Problem requests = kda::clone(problem);
  requests.output_gradient.reset(), requests.state_gradient.reset();
  if (requests.initial_state) {
    requests.initial_state = requests.initial_state->converted_to(states);
  } else {
    requests.initial_state = kda::zeros_of("initial_state", problem, states);
  }
  requests.validate();
  return requests;
}

Served served(const Problem& requests, const Tensors& expected, const Subject& subject,
              const Service& service) {
  return Server(requests, expected, subject, service).run();
}

}  // namespace kda_check::explain
