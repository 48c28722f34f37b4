#include "layerwise_search.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace oom::offload {
namespace {

constexpr size_t kFound = 4;  // plans that are returned

// Choices for layers 0 to l, and all that later ones need to know of them. The slot of l's backward is open: what it brings in is known, whether the run of
// regenerated inputs ends there is not.
struct Label {
  double seconds = 0;    // of closed slots
  double under_way = 0;  // forward: seconds of copies to the host that are not done
  double brings = 0;     // by the open slot
  double descent = 0;    // by the slot above, should this layer be the last of its run or stored
  double traversals[2] = {};  // of a capped run: seconds of those passed at offsets that are even, odd
  int64_t host_bytes = 0;
  int64_t gpu_bytes = 0;   // that exist all the time
  int64_t live_bytes = 0;  // most that passes need
  int64_t open_bytes = 0;  // the same of the open run's traversals, without what is carried
  int run = 0;    // regenerated inputs up to this layer
  ComingInputs coming;
  int64_t source_results = 0;  // bytes of those of the last layer whose input is stored
  bool has_results = false;  // with one buffer: some layer's have taken its place
  bool keeps = false;
  int parent = -1;
  Boundary boundary = Boundary::kHost;

  auto state() const { return std::tuple(run, has_results, keeps); }
  // No later choice makes this one worse than the other.
  bool dominates(const Label& other) const {
    return seconds <= other.seconds && under_way <= other.under_way && brings <= other.brings && descent <= other.descent && traversals[0] <= other.traversals[0] &&
           traversals[1] <= other.traversals[1] && host_bytes <= other.host_bytes && gpu_bytes <= other.gpu_bytes && gpu_bytes + live_bytes <= other.gpu_bytes + other.live_bytes &&
           gpu_bytes + open_bytes <= other.gpu_bytes + other.open_bytes && coming.from(true) <= other.coming.from(true) && coming.from(false) <= other.coming.from(false) &&
           source_results <= other.source_results;
  }
};

class Search {
 public:
  Search(const StepCosts& costs, const SearchSpace& space)
      : costs_(costs), space_(space), layers_(costs.count()), largest_result_(costs.largest_result_bytes()), capped_(space.regenerate_cap < space.longest_run) {
    OOM_CHECK(!capped_ || space.regenerate_cap <= 2, "a run is searched whole or by one or two inputs at once; got ", space.regenerate_cap);
    // The least that slots from a layer on can take.
    rest_.assign(layers_ + 1, costs.head.seconds);
    for (int layer = layers_ - 1; layer >= 0; --layer) {
      const LayerCosts& its = costs.layers[layer];
      const auto least = [&](auto pass) {
        const double discarded = pass(its.passes[0]), kept = pass(its.passes[1]);
        return !space.layers[layer].keep ? discarded : !space.layers[layer].discard ? kept : std::min(discarded, kept);
      };
      rest_[layer] = rest_[layer + 1] + std::max(least([](const auto& passes) { return passes.forward.seconds; }), weights(layer + 1)) +
                     std::max(least([](const auto& passes) { return passes.backward.seconds; }), leaving(layer));
    }
  }

  int64_t priced() const { return priced_; }

  std::vector<Found> run() {
    if (layers_ == 0) return {};
    for (int layer = 0; layer < layers_; ++layer) {
      std::vector<Label> next;
      if (layer == 0) {
        extend(0, nullptr, -1, next);
      } else {
        const std::vector<Label>& before = labels_.back();
        for (int at = 0; at < static_cast<int>(before.size()); ++at) extend(layer, &before[at], at, next);
      }
      labels_.push_back(thinned(pruned(std::move(next))));
      if (labels_.back().empty()) return {};
    }
    return finish();
  }

 private:
  double weights(int layer) const { return layer < layers_ ? costs_.layers[layer].weights_seconds : 0; }
  double leaving(int layer) const { return layer + 1 < layers_ ? costs_.layers[layer + 1].gradients_seconds : 0; }

  void extend(int layer, const Label* below, int parent, std::vector<Label>& next) {
    const LayerChoices& choices = space_.layers[layer];
    const bool stays = costs_.stays(layer, space_.buffers);
    for (const bool keeps : {false, true}) {
      if (keeps ? !choices.keep || costs_.layers[layer].result_bytes == 0 : !choices.discard) continue;
      // An input that stays in the ring needs no place of its own, nor can it or the first be regenerated.
      const bool is_free = stays && (choices.host || !choices.gpu), must_store = stays || layer == 0;
      if (choices.host || is_free || (must_store && !choices.gpu)) offer(layer, below, parent, Boundary::kHost, keeps, next);
      if (choices.gpu && !is_free) offer(layer, below, parent, Boundary::kGpu, keeps, next);
      if (choices.regenerate && !must_store && below->run < space_.longest_run) offer(layer, below, parent, Boundary::kRegenerate, keeps, next);
    }
  }

  void offer(int layer, const Label* below, int parent, Boundary boundary, bool keeps, std::vector<Label>& next) {
    ++priced_;
    const LayerCosts& its = costs_.layers[layer];
    const LayerCosts::Passes& passes = its.passes[keeps];
    const bool leaves = boundary == Boundary::kHost && !costs_.stays(layer, space_.buffers);
    const bool regenerates = boundary == Boundary::kRegenerate;
    const double results = keeps ? its.result_in_seconds : 0;
    Label label = below ? *below : Label{};
    label.parent = parent;
    label.boundary = boundary;
    label.keeps = keeps;
    if (below) label.seconds += closed_slot(layer - 1, *below, !regenerates);

    if (leaves) label.under_way += costs_.input_out_seconds;
    const double slot = std::max({passes.forward.seconds, weights(layer + 1), label.under_way - static_cast<double>(space_.buffers - 1) * costs_.input_out_seconds});
    label.under_way = std::max(0.0, label.under_way - slot) + (keeps ? its.result_out_seconds : 0);
    label.seconds += slot;

    if (leaves) label.host_bytes += costs_.input_bytes;
    if (boundary == Boundary::kGpu) label.gpu_bytes += costs_.input_bytes;
    if (keeps) {
      label.host_bytes += its.result_bytes;
      if (space_.buffers == 1 && !label.has_results) label.gpu_bytes += largest_result_;
      label.has_results = space_.buffers == 1;
    }

    label.coming = ComingInputs::above(below ? &below->coming : nullptr, below && costs_.layers[layer - 1].groups_heads, boundary);
    if (regenerates) {
      ++label.run;
      label.brings = weights(layer - 1) + (below->keeps ? costs_.layers[layer - 1].result_in_seconds : 0);
      const double traversal = std::max(costs_.layers[layer - 1].passes[below->keeps].traverse.seconds, its.weights_seconds + results);
      add_traversals(label, traversal);
      const bool in_ring = regenerates_in_ring(space_.buffers, space_.regenerate_cap);
      const int64_t inputs = in_ring ? 0 : std::min<int64_t>(label.run, std::max<int64_t>(space_.regenerate_cap, 2));
      label.open_bytes = std::max(label.open_bytes, costs_.traverse_bytes(layer - 1, below->keeps, space_.buffers) + inputs * costs_.input_bytes);
      label.live_bytes = std::max(label.live_bytes, label.open_bytes + its.carried_bytes + label.coming.during_traversal(its.groups_heads, space_.buffers) * costs_.input_bytes);
    } else {
      label.run = 0;
      label.open_bytes = 0;
      label.traversals[0] = label.traversals[1] = 0;
      label.brings = label.descent;
      label.descent = its.weights_seconds + results + (leaves ? costs_.input_in_seconds : 0);
    }
    const bool keeps_below = below && below->keeps;
    const int64_t results_below = keeps_below ? costs_.layers[layer - 1].result_bytes : 0;
    const bool traverses = below && below->run > 0;
    const Beside beside{label.coming, label.run, traverses && !regenerates ? 0 : results_below, traverses || regenerates ? below->source_results : 0};
    label.live_bytes = std::max({label.live_bytes, costs_.forward_bytes(layer, keeps, keeps_below, space_.buffers),
                                 costs_.backward_bytes(layer, keeps, beside, space_.buffers, space_.regenerate_cap)});
    if (!regenerates) label.source_results = keeps ? its.result_bytes : 0;
    if (layer == layers_ - 1) label.live_bytes = std::max(label.live_bytes, costs_.head_bytes(keeps, space_.buffers));
    const double least = label.seconds + rest_[layer + 1] + std::max(passes.backward.seconds, leaving(layer));
    if (fits(label) && least <= space_.most_seconds) next.push_back(label);
  }

  // One more input is regenerated in a run: with a cap, traversals begin from its source again for every so many inputs.
  void add_traversals(Label& label, double traversal) const {
    if (!capped_) {
      label.seconds += traversal;
    } else if (space_.regenerate_cap == 1) {
      label.traversals[0] += traversal;
      label.seconds += label.traversals[0];
    } else {
      double& sum = label.traversals[(label.run - 1) % 2];
      sum += traversal;
      label.seconds += sum;
    }
  }

  // The backward of `layer`, of which `label` is the choice; `ends`: the layer above is no part of the same run.
  double closed_slot(int layer, const Label& label, bool ends) const {
    const bool there = label.run > 0 && ends && (space_.regenerate_cap >= 2 || label.run == 1);
    return std::max({costs_.layers[layer].passes[label.keeps].backward.seconds, label.brings - (there ? weights(layer - 1) : 0), leaving(layer)});
  }

  bool fits(const Label& label) const {
    const int64_t gpu = label.gpu_bytes + label.live_bytes;
    return gpu <= space_.gpu_bytes && label.host_bytes <= space_.host_bytes && label.host_bytes + gpu <= space_.shared_bytes;
  }

  // Without labels that another is never worse than.
  static std::vector<Label> pruned(std::vector<Label> labels) {
    const auto order = [](const Label& label) { return std::tuple(label.state(), label.seconds, label.host_bytes, label.gpu_bytes, label.live_bytes, label.under_way, label.brings, label.descent); };
    std::sort(labels.begin(), labels.end(), [&](const Label& a, const Label& b) { return order(a) < order(b); });
    std::vector<Label> kept;
    size_t begin = 0;  // of those in the same state
    for (const Label& label : labels) {
      if (!kept.empty() && kept.back().state() != label.state()) begin = kept.size();
      if (std::none_of(kept.begin() + static_cast<std::ptrdiff_t>(begin), kept.end(), [&](const Label& other) { return other.dominates(label); })) kept.push_back(label);
    }
    return kept;
  }

  // Of labels that take about the same bytes the fastest, so that neither the fast nor the small are lost.
  std::vector<Label> thinned(std::vector<Label> labels) const {
    for (int bins = 64; space_.most_labels > 0 && labels.size() > space_.most_labels && bins > 1; bins = bins * 3 / 4) {
      const auto most = [&](auto of) { return std::max<int64_t>(1, of(*std::max_element(labels.begin(), labels.end(), [&](const Label& a, const Label& b) { return of(a) < of(b); }))); };
      const auto gpu = [&](const Label& label) { return label.gpu_bytes + label.live_bytes + label.coming.from(false) * costs_.input_bytes; };
      const auto host = [](const Label& label) { return label.host_bytes; };
      const int64_t most_gpu = most(gpu), most_host = most(host);
      std::map<std::tuple<std::tuple<int, bool, bool>, int64_t, int64_t>, size_t> fastest;
      for (size_t at = 0; at < labels.size(); ++at) {
        const auto bin = [&](int64_t bytes, int64_t of) { return static_cast<int64_t>(static_cast<double>(bytes) / static_cast<double>(of) * bins); };
        const auto [found, fresh] = fastest.try_emplace({labels[at].state(), bin(gpu(labels[at]), most_gpu), bin(host(labels[at]), most_host)}, at);
        if (!fresh && labels[at].seconds < labels[found->second].seconds) found->second = at;
      }
      std::vector<Label> fewer;
      for (const auto& [key, at] : fastest) fewer.push_back(labels[at]);
      labels = std::move(fewer);
    }
    return labels;
  }

  std::vector<Found> finish() const {
    struct End {
      double seconds;
      int at;
    };
    std::vector<End> ends;
    const std::vector<Label>& last = labels_.back();
    for (int at = 0; at < static_cast<int>(last.size()); ++at) {
      const Label& label = last[at];
      const double seconds = label.seconds + closed_slot(layers_ - 1, label, true) + std::max(costs_.head.seconds, label.descent);
      if (seconds <= space_.most_seconds) ends.push_back({seconds, at});
    }
    std::sort(ends.begin(), ends.end(), [](const End& a, const End& b) { return a.seconds < b.seconds; });
    std::vector<Found> found;
    for (const End& end : ends) {
      const Label& label = last[end.at];
      const Price price{end.seconds, label.gpu_bytes + label.live_bytes, label.host_bytes};
      const bool saves = std::all_of(found.begin(), found.end(), [&](const Found& other) {
        return static_cast<double>(price.gpu_bytes) < 0.99 * static_cast<double>(other.price.gpu_bytes) || static_cast<double>(price.host_bytes) < 0.99 * static_cast<double>(other.price.host_bytes);
      });
      if (!saves) continue;
      found.push_back({policy_of(end.at), price});
      if (found.size() == kFound) break;
    }
    return found;
  }

  Policy policy_of(int at) const {
    Policy policy;
    policy.buffers = space_.buffers;
    policy.layers.resize(layers_);
    for (int layer = layers_ - 1; layer >= 0; --layer) {
      const Label& label = labels_[layer][at];
      policy.layers[layer] = {label.boundary, label.keeps};
      at = label.parent;
    }
    policy.regenerate_cap = space_.regenerate_cap;
    return policy;
  }

  const StepCosts& costs_;
  const SearchSpace& space_;
  const int layers_;
  const int64_t largest_result_;
  const bool capped_;
  std::vector<double> rest_;
  int64_t priced_ = 0;
  std::vector<std::vector<Label>> labels_;  // by layer
};

}  // namespace

std::vector<Found> search_layers(const StepCosts& costs, const SearchSpace& space, int64_t* priced) {
  Search search(costs, space);
  std::vector<Found> found = search.run();
  if (priced) *priced = search.priced();
  return found;
}

}  // namespace oom::offload
