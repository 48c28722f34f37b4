#include "ep_plan.h"

#include <algorithm>

namespace oom::ep {
namespace {

// Receive buffers up to this size take the worst case whole: rounds are not worth saving less.
constexpr int64_t kSmallReceiveBytes = int64_t{64} << 20;
// Of an owner's even share of a chunk's rows: what a router that is trained to balance hardly exceeds.
constexpr int64_t kShares = 2;
// Likewise, of what a retained layer's owner keeps: it is there for the whole of a step, so closer.
constexpr double kKeptShares = 1.25;
constexpr int kMostRanks = 8;
// Chunks worth trying: of fewer tokens, an expert's products become too small for a GPU. Small ones pay by the resident layers that fit beside their buffers.
constexpr int64_t kLargestChunk = int64_t{256} << 10;
constexpr int64_t kSmallestChunk = int64_t{4} << 10;
constexpr int64_t kLastChunk = 1024;

void check_ranks(const ModelDescription& model, int ranks) {
  if (model.routed.experts % ranks == 0) return;
  throw ConfigError(cat("engine.ranks: must divide the model's ", model.routed.experts, " routed experts under experts = \"ep\", where each rank owns as many; got ", ranks,
                        ". Possible: ", possible_ranks(model.routed.experts, kMostRanks), "; or set engine.experts = \"local\""));
}

// Layers that a configuration names; what is left to the planner stays as it is.
void choose_layers(const SettingsTable& settings, const char* key, const ModelDescription& model, std::vector<int>& layers) {
  if (const auto chosen = settings.resolve_layers(key, static_cast<int64_t>(model.layers.size()))) layers.assign(chosen->begin(), chosen->end());
}

// A plan says in lists of its own which layers retain, for every strategy.
void refuse_second_list(const SettingsTable& settings, const char* key, const char* list) {
  if (settings.is_auto(key) || settings.is_word(key, "none")) return;
  throw ConfigError(cat(settings.where(key), ": a plan lists such layers in state.", list, "; cure: that list, and \"auto\" here"));
}

ExchangeShape resolve(const ModelDescription& model, const Plan& plan, const SettingsTable& settings, int64_t automatic_chunk) {
  check_ranks(model, plan.ranks);
  ExchangeShape shape{.ranks = plan.ranks, .tokens = plan.tokens_per_rank(), .top_k = model.routed.top_k, .experts = model.routed.experts};
  shape.chunk_tokens = std::min(settings.find_integer("routing_chunk").value_or(automatic_chunk), shape.tokens);
  const int64_t row_bytes = model.hidden * element_bytes(plan.workload.compute);
  const int64_t usual = std::max(kShares * shape.chunk_rows(), kSmallReceiveBytes / row_bytes);
  shape.receive_rows = std::min(settings.find_integer("receive_rows").value_or(usual), shape.worst_rows());
  const auto close = static_cast<int64_t>(kKeptShares * static_cast<double>(shape.chunk_rows()));
  shape.retain_rows = std::min(settings.find_integer("retain_rows").value_or(close), shape.worst_rows());
  if (shape.alone()) shape.receive_rows = shape.retain_rows = shape.worst_rows();
  return shape;
}

void write(const ExchangeShape& shape, Plan& plan) {
  plan.settings["ep"] = {{"retain", "\"auto\""},
                         {"retain_attention", "\"auto\""},
                         {"routing_chunk", std::to_string(shape.chunk_tokens)},
                         {"receive_rows", std::to_string(shape.receive_rows)},
                         {"retain_rows", std::to_string(shape.retain_rows)}};
}

}  // namespace

const SettingsSchema& ep_schema() {
  static const SettingsSchema schema{
      .table = "ep",
      .doc = "Experts: each GPU owns a share of every layer's experts, and tokens travel to them.",
      .settings = {{.key = "retain",
                    .forms = kIntegerForm | kIntegerListForm,
                    .words = {"auto", "all", "none"},
                    .unit = "layers",
                    .range = at_least(0),
                    .fallback = std::string("auto"),
                    .distinct = true,
                    .may_be_empty = true,
                    .doc = "Layers whose feed-forward tensors stay on the GPU from forward to backward: auto, all, none, a count or layer indices."},
                   {.key = "retain_attention",
                    .forms = kIntegerForm | kIntegerListForm,
                    .words = {"auto", "all", "none"},
                    .unit = "layers",
                    .range = at_least(0),
                    .fallback = std::string("auto"),
                    .distinct = true,
                    .may_be_empty = true,
                    .doc = "Layers whose attention tensors stay on the GPU from forward to backward: auto, all, none, a count or layer indices."},
                   {.key = "routing_chunk",
                    .forms = kIntegerForm,
                    .words = {"auto"},
                    .unit = "tokens",
                    .range = at_least(1),
                    .fallback = std::string("auto"),
                    .doc = "Tokens of a rank that are routed and exchanged at once; auto: all of them, or as many as make the shortest step that fits."},
                   {.key = "receive_rows",
                    .forms = kIntegerForm,
                    .words = {"auto"},
                    .unit = "rows",
                    .range = at_least(1),
                    .fallback = std::string("auto"),
                    .doc = "Rows that a rank takes at once from all others; chunks with more come in rounds. auto: twice an even share, or all where that is little."},
                   {.key = "retain_rows",
                    .forms = kIntegerForm,
                    .words = {"auto"},
                    .unit = "rows",
                    .range = at_least(1),
                    .fallback = std::string("auto"),
                    .doc = "Rows of a chunk that a rank keeps at most in a layer of retain; rounds that end beyond are exchanged again. auto: 1.25 times an even share."}}};
  return schema;
}

void configure_ep(const SettingsTable* settings, const ModelDescription& model, Plan& plan) {
  const SettingsTable defaults(ep_schema());
  const SettingsTable& wanted = settings ? *settings : defaults;
  choose_layers(wanted, "retain", model, plan.retained_feed_forward);
  choose_layers(wanted, "retain_attention", model, plan.retained_attention);
  if (model.routed.experts == 0) return;
  write(resolve(model, plan, wanted, plan.tokens_per_rank()), plan);
}

std::vector<Plan> smaller_chunks(const SettingsTable* settings, const ModelDescription& model, const Plan& plan, bool last_resort) {
  const SettingsTable defaults(ep_schema());
  const SettingsTable& wanted = settings ? *settings : defaults;
  std::vector<Plan> plans;
  if (model.routed.experts == 0 || !wanted.is_auto("routing_chunk")) return plans;
  const int64_t now = exchange_shape(model, plan).chunk_tokens;
  for (int64_t chunk = kLargestChunk; chunk >= (last_resort ? kLastChunk : kSmallestChunk); chunk /= 2) {
    if (chunk < now) write(resolve(model, plan, wanted, chunk), plans.emplace_back(plan));
  }
  return plans;
}

ExchangeShape exchange_shape(const ModelDescription& model, const Plan& plan) {
  const SettingsTable settings = parse_settings(ep_schema(), plan.settings_of("ep"), "settings.ep of the plan");
  refuse_second_list(settings, "retain", "retained_feed_forward");
  refuse_second_list(settings, "retain_attention", "retained_attention");
  return resolve(model, plan, settings, plan.tokens_per_rank());
}

}  // namespace oom::ep
