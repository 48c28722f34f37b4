#include "proposals.h"

#include <algorithm>

#include "measure.h"
#include "partition.h"

namespace oom::offload {
namespace {

using Table = std::map<std::string, std::string>;

constexpr int kLongestRun = 8;
constexpr size_t kMostLabels = 400;
constexpr size_t kMostProposals = 6;
constexpr double kOfInterest = 1.02;  // slower than the fastest by so much, by a model that is not exact
constexpr int kMostNeighbours = 24;   // of which each takes a program or a few
constexpr double kGain = 0.001;       // that makes a further round of them worth its time
constexpr double kNothingToGain = 1.005;
constexpr int64_t kManyBatches = 8;  // whose programs are long: for when nothing else fits

class Proposer {
 public:
  Proposer(const SettingsTable& given, const ModelDescription& model, const Plan& plan, const PlanningContext& context)
      : given_(given), model_(model), plan_(plan), context_(context), whole_(policy_of(model, plan)) {
    for (size_t layer = 0; layer < model.layers.size(); ++layer) {
      const LayerPolicy& stated = whole_.layers[layer];
      LayerChoices choices{.keep = attends(model.layers[layer])};
      if (!given.is_auto("keep_boundaries")) {
        choices.regenerate = stated.boundary == Boundary::kRegenerate;
        choices.host = choices.gpu = !choices.regenerate;
      }
      if (!given.is_auto("boundaries_on_gpu")) {
        choices.gpu = stated.boundary == Boundary::kGpu;
        if (choices.gpu) choices.host = choices.regenerate = false;
      }
      if (!given.is_auto("keep_attention")) {
        choices.keep = stated.keep_attention;
        choices.discard = !choices.keep;
      }
      choices_.push_back(choices);
    }
    buffers_ = given.is_auto("buffers") ? std::vector<int64_t>{Policy{}.buffers, 2, 1} : std::vector{whole_.buffers};
    caps_ = {kLongestRun, 2, 1};
    if (const auto cap = given.find_integer("regenerate_cap")) {
      longest_run_ = static_cast<int>(std::min<int64_t>(*cap <= 2 ? kLongestRun : *cap, kLongestRun));
      caps_ = {*cap <= 2 ? *cap : longest_run_};
    }
  }

  std::vector<Table> run() {
    bool may_gain = true;
    for (const Policy& partition : partitions(given_, model_, plan_, whole_)) {
      may_gain = may_gain && search(partition);
    }
    if (may_gain) climb();
    std::stable_sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) { return a.price.seconds < b.price.seconds; });
    std::vector<Table> tables;
    for (const Found& found : found_) {
      if (tables.size() == kMostProposals || found.price.seconds > kOfInterest * found_.front().price.seconds) break;
      Table table = table_of(found.policy);
      if (std::find(tables.begin(), tables.end(), table) == tables.end()) tables.push_back(std::move(table));
    }
    return tables;
  }

 private:
  // From the best of the coarse partitions, each size by itself, while that gains.
  void climb() {
    double before = std::numeric_limits<double>::infinity();
    for (int left = kMostNeighbours; best_seconds_ < before * (1 - kGain);) {
      before = best_seconds_;
      const Policy from = best_partition_;
      for (const Policy& partition : neighbours(given_, model_, plan_, whole_, from)) {
        if (std::any_of(tried_.begin(), tried_.end(), [&](const Policy& other) { return cuts_alike(plan_, other, partition); })) continue;
        if (left-- == 0 || !search(partition)) return;
      }
    }
  }

  // Returns false when smaller slices cannot be faster: this partition's plan is as fast as any would be without limits.
  bool search(Policy partition) {
    tried_.push_back(partition);
    const int64_t batches = (plan_.sequences_per_rank() + partition.sub_batch - 1) / partition.sub_batch;
    if (batches > kManyBatches && !found_.empty()) return true;
    // Beside inputs, passes take as many bytes with two buffers as with more; one is for when nothing else fits.
    partition.buffers = given_.is_auto("buffers") ? 2 : whole_.buffers;
    const Measured measured = measure(model_, plan_, partition, choices_, context_);
    // Sizes that change nothing, as those of slices of experts under an expert strategy with its own.
    if (std::find(seen_.begin(), seen_.end(), measured) != seen_.end()) return true;
    seen_.push_back(measured);
    double fastest = std::numeric_limits<double>::infinity();
    for (const int64_t buffers : buffers_) {
      if (buffers == 1 && buffers_.size() > 1 && fastest < std::numeric_limits<double>::infinity()) break;
      for (const int64_t cap : caps_) {
        if (buffers == 1 && cap != caps_.back()) continue;
        SearchSpace space{.layers = choices_, .buffers = buffers, .regenerate_cap = cap, .longest_run = longest_run_};
        space.gpu_bytes = measured.gpu_bytes;
        space.host_bytes = measured.host_bytes;
        space.shared_bytes = measured.shared_bytes;
        space.most_seconds = kOfInterest * best_seconds_;
        space.most_labels = kMostLabels;
        for (Found& found : search_layers(measured.costs, space)) {
          fastest = std::min(fastest, found.price.seconds);
          if (found.price.seconds < best_seconds_) {
            best_seconds_ = found.price.seconds;
            best_partition_ = partition;
          }
          Policy policy = partition;
          policy.layers = found.policy.layers;
          policy.buffers = buffers;
          policy.regenerate_cap = cap;
          found_.push_back({policy, found.price});
        }
        if (fastest <= kNothingToGain * measured.costs.least_seconds()) return false;
      }
    }
    return true;
  }

  Table table_of(const Policy& policy) const {
    Table table = plan_.settings.at("offload");
    for (auto& [key, value] : settings_of(policy)) {
      if (given_.is_auto(key)) table[key] = value;
    }
    return table;
  }

  const SettingsTable& given_;
  const ModelDescription& model_;
  const Plan& plan_;
  const PlanningContext& context_;
  const Policy whole_;
  std::vector<LayerChoices> choices_;
  std::vector<int64_t> buffers_, caps_;
  int longest_run_ = kLongestRun;
  double best_seconds_ = std::numeric_limits<double>::infinity();
  Policy best_partition_;
  std::vector<Policy> tried_;
  std::vector<Measured> seen_;
  std::vector<Found> found_;
};

}  // namespace

std::vector<Table> proposals(const SettingsTable& given, const ModelDescription& model, const Plan& plan, const PlanningContext& context) {
  return Proposer(given, model, plan, context).run();
}

}  // namespace oom::offload
