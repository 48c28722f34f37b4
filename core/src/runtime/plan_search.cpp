#include "runtime/plan_search.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>
#include <set>
#include <tuple>

#include "base/text.h"
#include "plugin/plugin_guard.h"
#include "runtime/base_plan.h"
#include "runtime/deferral.h"
#include "runtime/residency.h"

namespace oom::runtime {
namespace {

constexpr int kParts = 8;                        // deferral is chosen in so many parts of the layers that may wait
constexpr int kCorrections = 6;                  // of an estimated number of layers
constexpr int kRounds = 3;                       // through all kinds of choices
constexpr double kGain = 0.001;                  // that makes another round worth its time
constexpr double kNear = 1.02;                   // of the best time: a policy further off is not tried again
constexpr double kNearChunk = 1.1;               // likewise a chunk, before its waiting updates are chosen
constexpr int kWorse = 2;                        // chunks in a row that gain nothing
constexpr int kEnough = 3;                       // policies that fit where the plan as configured does not
constexpr int64_t kWorkStages = 1'000'000;       // emitted in all before only what must be tried is: some seconds
constexpr int kSwaps = 24;                       // of resident layers

using Settings = std::map<std::string, std::string>;

class Search {
 public:
  Search(Session& session, const Plan& configured, const Budgets& budgets)
      : session_(session), judge_(session.judge()), configured_(configured), budgets_(budgets), model_(session.model().description), routed_(routed_layers(model_)) {
    const config::State& state = session.config().state();
    // On the CPU device every place is host memory: residency would save nothing.
    places_ = configured.device == DeviceKind::kCuda;
    open_layers_ = places_ && state.resident.is_auto() && !routed_.empty();
    open_placement_ = open_layers_ && !session.config().table("state").is_given("placement");
    open_ordinary_ = places_ && !state.resident_ordinary;
    const SettingsTable& transfer = session.config().table("transfer");
    open_slots_ = places_ && !transfer.is_given("gradient_slots");
    open_ordinary_slots_ = open_slots_ && !transfer.is_given("ordinary_gradient_slots");
    open_weights_ = !state.weights;
    open_resident_weights_ = places_ && !state.resident_weights;
    open_deferral_ = may_choose_deferral(session.config());
    if (places_) retention_ = session.experts(configured.experts).retention();
    first_work_ = judge_.emitted_stages();
    add_chunks(/*last_resort=*/false);
  }

  SearchResult run() {
    if (!place(configured_)) {
      relieve();
    } else if (open_slots_ || open_ordinary_slots_) {
      (void)place(with_more_slots());
    }
    if (best_) climb();
    // Ordinary parameters weigh as much as many layers: what is best beside them on the GPUs has little to do with what is best without.
    if (best_ && open_ordinary_) {
      const size_t first = *best_;
      Plan plan = best().plan;
      plan.resident_ordinary = plan.resident_ordinary == OrdinaryResidency::kAll ? OrdinaryResidency::kNone : OrdinaryResidency::kAll;
      best_.reset();
      hopeless_.clear();
      fill(plan);
      // What was chosen for the memory that was left before may not suit what is left now.
      plan.settings = configured_.settings;
      plan.retained_feed_forward = configured_.retained_feed_forward;
      plan.retained_attention = configured_.retained_attention;
      fill(plan);
      if (best_) climb();
      if (!best_ || *trials_[first].figures.step_seconds <= best_seconds()) best_ = first;
    }
    if (best_) {
      vary_embedding();
      vary_placement();
      spare_layers();
      spare_slots();
    }
    return result();
  }

 private:
  /// Each kind of choice in turn about the best plan so far.
  void climb() {
    double before = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kRounds && best_seconds() < before * (1 - kGain); ++round) {
      before = best_seconds();
      fill(best().plan);
      vary_supply();
      vary_deferral();
      vary_slots();
      vary_resident_weights();
      vary_chunk();
      if (round == 0) vary_proposed();
      vary_activations();
      vary_retention();
    }
  }

  const Trial& best() const { return trials_[*best_]; }
  double best_seconds() const { return *best().figures.step_seconds; }
  bool may_go_on() const { return judge_.emitted_stages() - first_work_ < kWorkStages; }

  /// Judges a plan; with converted instead of cached weights where only host memory lacks and that is open. The place of its trial when it fits.
  std::optional<size_t> try_plan(Plan plan) {
    const std::optional<size_t> tried = judge(plan);
    const PlanFigures& figures = trials_.back().figures;
    if (tried || !open_weights_ || !plan.cached_weights || host_spare_bytes(figures, budgets_) >= 0) return tried;
    plan.cached_weights = false;
    return judge(plan);
  }

  std::optional<size_t> judge(const Plan& plan) {
    Trial trial{.plan = plan, .figures = judge_.account(plan), .fits = false};
    trial.fits = over_bytes(trial.figures, budgets_) == 0;
    if (trial.fits) trial.figures = judge_.simulate(plan);
    trials_.push_back(std::move(trial));
    const size_t at = trials_.size() - 1;
    const Trial& made = trials_[at];
    if (!made.fits) {
      if (!smallest_ || over_bytes(made.figures, budgets_) < over_bytes(trials_[*smallest_].figures, budgets_)) smallest_ = at;
      return std::nullopt;
    }
    if (!best_ || *made.figures.step_seconds < best_seconds()) best_ = at;
    return at;
  }

  int64_t spare_of_latest() const { return gpu_spare_bytes(trials_.back().figures, budgets_); }

  /// Some choices exclude each other: attention that is retained is not cut.
  bool is_possible(const Plan& plan) const {
    try {
      session_.activations(plan.activations).check(model_, plan);
      return true;
    } catch (const ConfigError&) {
      return false;
    }
  }

  // ---- resident layers
  /// State of one layer's experts on a GPU.
  int64_t layer_bytes(const Plan& plan) const {
    int64_t elements = 0;
    std::vector<int64_t> by_layer(model_.layers.size(), 0);
    for (const ParameterSpec& spec : model_.parameters) {
      if (spec.role == ParameterRole::kExpert && spec.layer >= 0) elements = std::max(elements, by_layer[spec.layer] += spec.elements());
    }
    return std::max<int64_t>(1, elements / plan.ranks * (12 + (plan.resident_cached_weights ? element_bytes(plan.workload.compute) : 0)));
  }

  Plan with_layers(const Plan& plan, std::vector<int> layers) const {
    Plan changed = plan;
    const size_t could_wait = deferrable_layers(plan, model_).size();
    changed.resident_layers = std::move(layers);
    // The same part of the layers that may wait does.
    if (open_deferral_ && could_wait > 0) changed.deferred_layers = static_cast<int>(plan.deferred_layers * deferrable_layers(changed, model_).size() / could_wait);
    return changed;
  }
  std::vector<int> layers(int count, config::Placement placement) const {
    std::vector<int> chosen;
    for (const int position : place_resident(count, static_cast<int>(routed_.size()), placement)) chosen.push_back(routed_[position]);
    return chosen;
  }
  Plan with_count(const Plan& plan, int count) const { return with_layers(plan, layers(count, session_.config().state().placement)); }

  /// Tries the plan with as many resident layers as the GPUs hold; bytes a layer are nearly the same, so an estimate needs few corrections.
  void fill(const Plan& plan) {
    if (!is_possible(plan)) return;
    if (!open_layers_) {
      (void)try_plan(plan);
      return;
    }
    const int all = static_cast<int>(routed_.size());
    const int64_t bytes = layer_bytes(plan);
    int fitting = -1, failing = all + 1;
    int count = static_cast<int>(plan.resident_layers.size());
    for (int i = 0; i < kCorrections && fitting + 1 < failing; ++i) {
      (void)try_plan(with_count(plan, count));
      const int64_t spare = spare_of_latest();
      if (spare >= 0) {
        fitting = std::max(fitting, count);
        // An estimate: a layer that does not quite fit by it may.
        const int more = static_cast<int>(std::min<int64_t>((spare + bytes / 2) / bytes, all));
        if (more == 0) break;
        count = std::min({fitting + more, failing - 1, all});
      } else {
        failing = std::min(failing, count);
        count = std::max<int>(fitting + 1, failing - static_cast<int>((-spare + bytes - 1) / bytes));
        count = std::clamp(count, 0, failing - 1);
        if (failing == 0) break;
      }
      if (count == fitting) break;
    }
    // Where nothing is streamed, its windows are not needed either.
    if (fitting >= 0 && fitting < all && failing != all && all - fitting <= kWindowsOfLayers) (void)try_plan(with_count(plan, all));
  }

  /// The same without and, where that does not fit for want of host memory, with the ordinary parameters; false when neither fits.
  bool place(const Plan& plan) {
    fill(plan);
    if (best_ || !open_ordinary_ || plan.resident_ordinary == OrdinaryResidency::kAll || spare_of_latest() < 0) return best_.has_value();
    Plan resident = plan;
    resident.resident_ordinary = OrdinaryResidency::kAll;
    fill(resident);
    return best_.has_value();
  }

  bool nothing_streams(const Plan& plan) const { return plan.resident_ordinary == OrdinaryResidency::kAll && plan.resident_layers.size() == routed_.size(); }

  /// The embedding alone is little beside a layer's experts.
  void vary_embedding() {
    if (!open_ordinary_ || best().plan.resident_ordinary == OrdinaryResidency::kAll || !may_go_on()) return;
    Plan plan = best().plan;
    plan.resident_ordinary = plan.resident_ordinary == OrdinaryResidency::kNone ? OrdinaryResidency::kEmbedding : OrdinaryResidency::kNone;
    const double before = best_seconds();
    fill(plan);
    if (best_seconds() < before) vary_deferral();
  }

  void vary_resident_weights() {
    const Plan& now = best().plan;
    if (!open_resident_weights_ || (now.resident_ordinary == OrdinaryResidency::kNone && now.resident_layers.empty())) return;
    Plan plan = now;
    plan.resident_cached_weights = !plan.resident_cached_weights;
    const size_t before = *best_;
    fill(plan);
    if (plan.resident_cached_weights && best_seconds() >= *trials_[before].figures.step_seconds * (1 - kGain)) best_ = before;  // they take memory
  }

  // ---- what the host does
  void vary_supply() {
    const Plan& now = best().plan;
    if (!open_weights_ || nothing_streams(now)) return;
    Plan plan = now;
    plan.cached_weights = !plan.cached_weights;
    if (judge(plan) || !plan.cached_weights) return;
    plan.transfer.gradient_slots = configured_.transfer.gradient_slots;
    plan.transfer.ordinary_gradient_slots = configured_.transfer.ordinary_gradient_slots;
    (void)judge(plan);
  }

  void vary_deferral() {
    if (!open_deferral_) return;
    const int could_wait = static_cast<int>(deferrable_layers(best().plan, model_).size());
    // All layers would be all updates, the head's too.
    const int most = std::min(could_wait, static_cast<int>(model_.layers.size()) - 1);
    const auto try_part = [&](int part) {
      Plan plan = best().plan;
      plan.deferred_layers = std::min(could_wait * part / kParts, most);
      const size_t before = *best_;
      (void)judge(plan);
      return *best_ != before;
    };
    int part = could_wait == 0 ? 0 : static_cast<int>((static_cast<int64_t>(best().plan.deferred_layers) * kParts + could_wait - 1) / could_wait);
    for (int stride = kParts / 2; stride > 0; stride /= 2) {
      if (part + stride <= kParts && try_part(part + stride)) {
        part += stride;
      } else if (part - stride >= 0 && try_part(part - stride)) {
        part -= stride;
      }
    }
  }

  /// What else is best depends on how long gradients may wait: the search begins with room for that.
  Plan with_more_slots() const {
    Plan plan = configured_;
    if (open_slots_) plan.transfer.gradient_slots *= 2;
    if (open_ordinary_slots_) plan.transfer.ordinary_gradient_slots *= 2;
    return plan;
  }

  /// The fewest slots that are as fast: what they leave of the host's memory is headroom.
  void spare_slots() {
    const double enough = best_seconds() * (1 + kTie);
    const auto spare = [&](int TransferPlan::*slots) {
      for (Plan plan = best().plan; plan.transfer.*slots > configured_.transfer.*slots && may_go_on();) {
        plan.transfer.*slots /= 2;
        const std::optional<size_t> tried = judge(plan);
        if (!tried || *trials_[*tried].figures.step_seconds > enough) return;
        best_ = tried;
      }
    };
    if (open_slots_) spare(&TransferPlan::gradient_slots);
    if (open_ordinary_slots_) spare(&TransferPlan::ordinary_gradient_slots);
  }

  /// More slots where gradients wait for late updates, twice as many each time while that pays for the host memory.
  void vary_slots() {
    const auto vary = [&](int TransferPlan::*slots, int most) {
      while (may_go_on() && best().plan.transfer.*slots < most) {
        Plan plan = best().plan;
        plan.transfer.*slots = std::min(most, 2 * plan.transfer.*slots);
        const size_t before = *best_;
        (void)judge(plan);
        if (best_seconds() < *trials_[before].figures.step_seconds * (1 - kGain)) continue;
        best_ = before;
        return;
      }
    };
    if (nothing_streams(best().plan)) return;
    const int layers = static_cast<int>(model_.layers.size());
    if (open_ordinary_slots_ && best().plan.resident_ordinary != OrdinaryResidency::kAll) vary(&TransferPlan::ordinary_gradient_slots, layers);
    if (open_slots_) vary(&TransferPlan::gradient_slots, static_cast<int>(routed_.size() - best().plan.resident_layers.size()));
  }

  // ---- the strategies' own choices
  void add_chunks(bool last_resort) {
    chunks_.assign(1, configured_.settings.count(configured_.experts) ? configured_.settings.at(configured_.experts) : Settings{});
    for (const Plan& plan : session_.experts(configured_.experts).alternatives(model_, configured_, last_resort)) chunks_.push_back(plan.settings.at(plan.experts));
  }
  Plan with_chunk(const Plan& plan, size_t chunk) const {
    Plan changed = plan;
    if (chunks_.size() > 1) changed.settings[plan.experts] = chunks_[chunk];
    return changed;
  }

  void vary_chunk() {
    if (chunks_.size() < 2) return;
    const auto now = std::find(chunks_.begin(), chunks_.end(), best().plan.settings.at(configured_.experts));
    if (now == chunks_.end()) return;
    const int begin = static_cast<int>(now - chunks_.begin());
    for (const int direction : {1, -1}) {
      int worse = 0;
      for (int chunk = begin + direction; chunk >= 0 && chunk < static_cast<int>(chunks_.size()) && worse < kWorse && may_go_on(); chunk += direction) {
        const double before = best_seconds();
        climb_with(static_cast<size_t>(chunk));
        worse = best_seconds() < before * (1 - kGain) ? 0 : worse + 1;
      }
    }
  }

  /// The chunk with as many layers as it leaves memory for, and as many waiting updates as are best beside those: how the updates of a few layers more or less
  /// meet the rest of a step decides more than the chunk itself.
  void climb_with(size_t chunk) {
    const size_t before = *best_;
    best_.reset();
    fill(with_chunk(trials_[before].plan, chunk));
    if (best_ && best_seconds() < *trials_[before].figures.step_seconds * kNearChunk) vary_deferral();
    if (!best_ || !is_surely_faster(before)) best_ = before;
  }

  /// Whether the best plan is faster than a trial of other slices by more than costs leave in doubt.
  bool is_surely_faster(size_t than) const { return best_seconds() < *trials_[than].figures.step_seconds * (1 - session_.costs_doubt()); }

  std::vector<Settings> policies() const {
    std::vector<Settings> tables{configured_.settings.at(configured_.activations)};
    for (const Plan& plan : session_.activations(configured_.activations).alternatives(model_, configured_)) tables.push_back(plan.settings.at(plan.activations));
    return tables;
  }

  /// A plan of other slices or policies than the best one's.
  void fill_otherwise(const Plan& plan) {
    const size_t before = *best_;
    fill(plan);
    if (*best_ != before && !is_surely_faster(before)) best_ = before;
  }

  /// What the activation strategy finds for a plan with its state placed.
  std::vector<Plan> proposed(const Plan& plan) {
    const PlanningContext context = planning_context(session_, plan.experts, budgets_);
    return plugin::guarded(plan.activations, "propose", plugin::kNoStep, [&] { return session_.activations(plan.activations).propose(model_, plan, context); });
  }

  /// Those, for the resident layers as they are and for none, which leaves them more memory. On the CPU device every place is host memory: what fits there is
  /// not made faster by storing elsewhere.
  void vary_proposed() {
    if (!places_) return;
    std::vector<Plan> from{best().plan};
    if (open_layers_ && !best().plan.resident_layers.empty()) from.push_back(with_layers(best().plan, {}));
    for (const Plan& placed : from) {
      if (!may_go_on()) return;
      for (const Plan& plan : proposed(placed)) {
        if (may_go_on()) fill_otherwise(plan);
      }
    }
  }

  void vary_activations() {
    if (!configured_.settings.count(configured_.activations)) return;
    for (const Settings& table : policies()) {
      if (!may_go_on()) return;
      Plan plan = best().plan;
      if (plan.settings.at(plan.activations) == table || hopeless_.contains(table)) continue;
      plan.settings[plan.activations] = table;
      const size_t first = trials_.size();
      fill_otherwise(plan);
      const auto is_near = [&](const Trial& trial) { return trial.fits && *trial.figures.step_seconds < best_seconds() * kNear; };
      if (std::none_of(trials_.begin() + static_cast<std::ptrdiff_t>(first), trials_.end(), is_near)) hopeless_.insert(table);
    }
  }

  void vary_retention() {
    if (retention_.feed_forward) vary_retained(&Plan::retained_feed_forward, routed_);
    std::vector<int> all;
    for (size_t layer = 0; layer < model_.layers.size(); ++layer) all.push_back(static_cast<int>(layer));
    if (retention_.attention) vary_retained(&Plan::retained_attention, all);
  }
  /// More of the first layers, twice as many each time, while that pays for the resident layers it takes the place of; fewer where it does not.
  void vary_retained(std::vector<int> Plan::*retained, const std::vector<int>& of) {
    const auto try_count = [&](int count) {
      Plan plan = best().plan;
      (plan.*retained).assign(of.begin(), of.begin() + count);
      const size_t before = *best_;
      fill(plan);
      return *best_ != before;
    };
    const int most = static_cast<int>(of.size());
    int count = static_cast<int>((best().plan.*retained).size()), stride = 1;
    for (; count + stride <= most && may_go_on() && try_count(count + stride); stride *= 2) count += stride;
    for (stride /= 2; stride > 0 && may_go_on(); stride /= 2) {
      if (count + stride <= most && try_count(count + stride)) count += stride;
    }
    if (count > 0 && may_go_on()) (void)try_count(count - 1);
  }

  // ---- which layers are resident
  void vary_placement() {
    const int count = static_cast<int>(best().plan.resident_layers.size());
    if (!open_placement_ || count == 0 || count == static_cast<int>(routed_.size())) return;
    for (const config::Placement placement : {config::Placement::kContiguous, config::Placement::kInterleaved}) (void)try_plan(with_layers(best().plan, layers(count, placement)));
    // Then one layer at a time goes to the place of a streamed one beside it.
    int left = kSwaps;
    for (bool moved = true; moved && left > 0 && may_go_on();) {
      moved = false;
      const std::vector<int> from = best().plan.resident_layers;
      for (size_t i = 0; i < from.size() && !moved && left > 0 && may_go_on(); ++i) {
        for (const int step : {-1, 1}) {
          const auto at = std::lower_bound(routed_.begin(), routed_.end(), from[i]) - routed_.begin() + step;
          if (at < 0 || at >= static_cast<std::ptrdiff_t>(routed_.size()) || std::binary_search(from.begin(), from.end(), routed_[at])) continue;
          std::vector<int> to = from;
          to[i] = routed_[at];
          std::sort(to.begin(), to.end());
          const double before = best_seconds();
          (void)try_plan(with_layers(best().plan, to));
          --left;
          moved = best_seconds() < before * (1 - kGain);
          if (moved) break;
        }
      }
    }
  }

  /// The fewest resident layers that are as fast: what they leave is headroom.
  void spare_layers() {
    if (!open_layers_) return;
    const Plan plan = best().plan;
    const double enough = best_seconds() * (1 + kTie);
    int slow = -1, fast = static_cast<int>(plan.resident_layers.size());
    for (int count = fast - 1; fast - slow > 1 && may_go_on(); count = (slow + fast) / 2) {
      const std::optional<size_t> tried = try_plan(with_count(plan, count));
      (tried && *trials_[*tried].figures.step_seconds <= enough ? fast : slow) = count;
    }
  }

  // ---- when the plan as configured does not fit
  /// True when the GPUs do not even hold what no slices and no policy make smaller: neither beside the plan as configured nor beside the smallest.
  bool is_hopeless() {
    Plan plan = with_chunk(configured_, chunks_.size() - 1);
    if (open_layers_) plan = with_layers(plan, {});
    const auto exceeds = [&] {
      const std::vector<int64_t>& floor = judge_.account(plan).gpu_floor_bytes;
      for (size_t rank = 0; rank < budgets_.gpu_bytes.size(); ++rank) {
        if (floor[rank] > budgets_.gpu_bytes[rank] - budgets_.headroom_bytes) return true;
      }
      return false;
    };
    if (!exceeds()) return false;
    if (configured_.settings.count(configured_.activations)) {
      plan.settings[plan.activations] = policies().back();
      if (!exceeds()) return false;
    }
    (void)judge(plan);
    return true;
  }

  void relieve() {
    const size_t ordinary = chunks_.size();
    add_chunks(/*last_resort=*/true);
    if (is_hopeless()) return;
    // Policies cost less than chunks so small that an expert's products have few rows.
    if (place_chunks(1, ordinary) || place_policies(ordinary - 1)) {
      chunks_.resize(ordinary);
      return;
    }
    if (place_chunks(ordinary, chunks_.size()) || place_policies(chunks_.size() - 1)) return;
    for (const Plan& plan : proposed(with_chunk(configured_, chunks_.size() - 1))) (void)place(plan);
  }
  bool place_chunks(size_t begin, size_t end) {
    for (size_t chunk = begin; chunk < end; ++chunk) {
      if (place(with_chunk(configured_, chunk))) return true;
    }
    return false;
  }
  bool place_policies(size_t chunk) {
    if (!configured_.settings.count(configured_.activations)) return false;
    int fitting = 0;
    for (const Settings& table : policies()) {
      Plan plan = with_chunk(configured_, chunk);
      plan.settings[plan.activations] = table;
      if (place(plan) && ++fitting == kEnough) break;
    }
    return best_.has_value();
  }

  SearchResult result() {
    SearchResult found;
    size_t chosen = best_ ? *best_ : *smallest_;
    if (best_) {
      const double enough = best_seconds() * (1 + kTie);
      const auto headroom = [&](size_t at) {
        const Trial& trial = trials_[at];
        return std::tuple(gpu_spare_bytes(trial.figures, budgets_), trial.plan.cached_weights, host_spare_bytes(trial.figures, budgets_));
      };
      // Where costs leave other slices in doubt, a tie by these costs is none.
      const bool any_slices = session_.costs_doubt() == 0;
      for (size_t at = 0; at < trials_.size(); ++at) {
        if (!any_slices && trials_[at].plan.settings != best().plan.settings) continue;
        if (trials_[at].fits && *trials_[at].figures.step_seconds <= enough && headroom(at) > headroom(chosen)) chosen = at;
      }
    }
    found.best = trials_[chosen];
    for (Trial& trial : trials_) {
      const std::string difference = describe_difference(trial.plan, found.best.plan);
      const auto same = [&](const Trial& other) { return describe_difference(other.plan, found.best.plan) == difference; };
      if (!difference.empty() && std::none_of(found.others.begin(), found.others.end(), same)) found.others.push_back(std::move(trial));
    }
    return found;
  }

  static constexpr int kWindowsOfLayers = 4;  // what windows and slots of streamed layers may take, in resident layers

  Session& session_;
  PlanJudge& judge_;
  const Plan& configured_;
  const Budgets& budgets_;
  const ModelDescription& model_;
  const std::vector<int> routed_;
  bool places_ = false;
  bool open_layers_ = false, open_placement_ = false, open_ordinary_ = false, open_weights_ = false, open_resident_weights_ = false, open_deferral_ = false, open_slots_ = false,
       open_ordinary_slots_ = false;
  ExpertStrategy::Retention retention_;
  std::vector<Settings> chunks_;  // of the expert strategy, the one configured first
  std::deque<Trial> trials_;      // which references into survive further ones
  std::set<Settings> hopeless_;   // activation policies
  std::optional<size_t> best_, smallest_;
  int64_t first_work_ = 0;
};

}  // namespace

SearchResult search_plan(Session& session, const Plan& plan, const Budgets& budgets) { return Search(session, plan, budgets).run(); }

std::string describe_difference(const Plan& plan, const Plan& other) {
  std::vector<std::string> said;
  const auto list = [](const std::vector<int>& layers) {
    std::string text;
    for (const int layer : layers) text += cat(text.empty() ? "" : ", ", layer);
    return cat("[", text, "]");
  };
  const auto layers = [&](const char* key, const std::vector<int>& mine, const std::vector<int>& theirs) {
    if (mine != theirs) said.push_back(cat(key, " ", mine.size() != theirs.size() ? cat(mine.size()) : list(mine)));
  };
  const auto choice = [&](const char* key, bool mine, bool theirs, const char* yes, const char* no) {
    if (mine != theirs) said.push_back(cat(key, " ", mine ? yes : no));
  };
  if (plan.experts != other.experts) said.push_back(cat("experts ", plan.experts));
  layers("state.resident", plan.resident_layers, other.resident_layers);
  if (plan.resident_ordinary != other.resident_ordinary) said.push_back(cat("state.resident_ordinary ", config::word(plan.resident_ordinary)));
  choice("state.weights", plan.cached_weights, other.cached_weights, "cached", "convert");
  choice("state.resident_weights", plan.resident_cached_weights, other.resident_cached_weights, "cached", "convert");
  if (plan.deferred_layers != other.deferred_layers) said.push_back(cat("deferred_layers ", plan.deferred_layers));
  const auto slots = [&](const char* key, int mine, int theirs) {
    if (mine != theirs) said.push_back(cat(key, " ", mine));
  };
  slots("transfer.gradient_slots", plan.transfer.gradient_slots, other.transfer.gradient_slots);
  slots("transfer.ordinary_gradient_slots", plan.transfer.ordinary_gradient_slots, other.transfer.ordinary_gradient_slots);
  layers("retained_feed_forward", plan.retained_feed_forward, other.retained_feed_forward);
  layers("retained_attention", plan.retained_attention, other.retained_attention);
  for (const auto& [plugin, table] : plan.settings) {
    const auto theirs = other.settings.find(plugin);
    if (theirs == other.settings.end()) continue;  // another strategy's own
    for (const auto& [key, value] : table) {
      const auto found = theirs->second.find(key);
      if (found == theirs->second.end() || found->second != value) said.push_back(cat(plugin, ".", key, " ", value));
    }
  }
  return base::join(said, ", ");
}

std::string describe_state(const Plan& plan) {
  return cat(plan.resident_layers.size(), " layers resident, resident ordinary parameters: ", config::word(plan.resident_ordinary), ", weights ", plan.cached_weights ? "cached" : "converted");
}

}  // namespace oom::runtime
