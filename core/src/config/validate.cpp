#include "config/validate.h"

#include <algorithm>

#include "base/text.h"

namespace oom::config {
namespace {

/// The largest divisor of `number` below `value` and the smallest above it, of those there are.
std::string divisors_near(int64_t number, int64_t value) {
  std::string text;
  for (int64_t below = std::min(value, number); below >= 1; --below) {
    if (number % below == 0) {
      text = cat(below);
      break;
    }
  }
  for (int64_t above = value + 1; above <= std::min(number, 2 * value); ++above) {
    if (number % above == 0) {
      text += cat(" or ", above);
      break;
    }
  }
  return text;
}

void check_train(const Config& config, Faults& faults) {
  const Train& train = config.train();
  const auto where = [&](std::string_view key) { return config.where("train", key); };
  if (train.schedule == Schedule::kWsd && train.decay_steps == 0) {
    faults.add(where("decay_steps"), ": must be at least 1 with schedule = \"wsd\"; got 0; cure: give the length of the fall in steps");
  }
  const int64_t decay_steps = train.schedule == Schedule::kWsd ? train.decay_steps : 0;
  const bool too_long_alone = train.warmup_steps > train.steps;
  if (too_long_alone) faults.add(where("warmup_steps"), ": must be at most train.steps = ", train.steps, "; got ", train.warmup_steps);
  if (decay_steps > train.steps || (!too_long_alone && train.warmup_steps + decay_steps > train.steps)) {
    const int64_t left = train.steps - (too_long_alone ? 0 : train.warmup_steps);
    faults.add(where("decay_steps"), ": must be at most ", left, ", train.steps = ", train.steps, too_long_alone || train.warmup_steps == 0 ? "" : cat(" less train.warmup_steps = ", train.warmup_steps),
               "; got ", decay_steps);
  }
  if (train.min_learning_rate > train.learning_rate) {
    faults.add(where("min_learning_rate"), ": must be at most train.learning_rate = ", train.learning_rate, "; got ", train.min_learning_rate);
  }
  if (train.clip_norm > 0 && train.updates == Updates::kOverlapped) {
    faults.add(where("updates"), ": must be \"deferred\" or \"auto\" when train.clip_norm = ", train.clip_norm,
               ", because overlapped updates cannot know the norm; got \"overlapped\"; cure: updates = \"deferred\", or clip_norm = 0");
  }
}

void check_model(const Config& config, Faults& faults) {
  const Model& model = config.model();
  if (model.layers && model.weights == WeightSource::kLoad) {
    faults.add(config.where("model", "layers"), ": needs model.weights = \"random\", because the folder's weights are of all layers; got ", *model.layers, "; cure: weights = \"random\", or remove the key");
  }
}

void check_data(const Config& config, Faults& faults) {
  const Data& data = config.data();
  const bool held_out_text = config.eval().path && config.eval().format == DataFormat::kText;
  if (data.documents == Documents::kIsolated && (data.format == DataFormat::kText || held_out_text)) {
    faults.add(config.where("data", "documents"), ": must be \"joined\" with ", data.format == DataFormat::kText ? "" : "eval.", "format = \"text\", which knows no documents; got \"isolated\"; ",
               "cure: documents = \"joined\", or token files with format = \"megatron\"");
  }
}

void check_eval(const Config& config, Faults& faults) {
  const Eval& eval = config.eval();
  if (eval.path && eval.holdout_samples > 0) {
    faults.add(config.where("eval", "holdout_samples"), ": must be 0 with eval.path = ", *eval.path, ", which is the held-out data already; got ", eval.holdout_samples);
  }
  if (eval.format && !eval.path) faults.add(config.where("eval", "format"), ": is the format of eval.path, which is missing; cure: give eval.path, or remove the key");
  const char* needs = "needs held-out data; cure: eval.path = \"...\", or eval.holdout_samples = 64";
  if (eval.every > 0 && !eval.held_out()) faults.add(config.where("eval", "every"), ": ", needs);
  if (config.checkpoint().keep_best > 0 && !eval.held_out()) faults.add(config.where("checkpoint", "keep_best"), ": ranks checkpoints by evaluation loss, which ", needs);
}

void check_budget(const Config& config, Faults& faults) {
  const Budget& budget = config.budget();
  // The default headroom against a small budget is for admission to judge, which knows what would fit.
  if (config.table("budget").is_given("headroom") && budget.gpu_bytes && budget.headroom_bytes >= *budget.gpu_bytes) {
    faults.add(config.where("budget", "headroom"), ": must be less than budget.gpu = ", base::format_bytes(*budget.gpu_bytes), "; got ",
               base::format_bytes(budget.headroom_bytes));
  }
}

}  // namespace

void check_batch(const Config& config, int64_t ranks, Faults& faults) {
  const int64_t batch = config.train().global_batch;
  if (batch % ranks == 0) return;
  const int64_t below = batch / ranks * ranks;
  faults.add(config.where("train", "global_batch"), ": must be a multiple of the ranks = ", ranks, "; got ", batch, "; near it: global_batch ",
             below > 0 ? cat(below, " or ") : "", below + ranks, ", ranks ", divisors_near(batch, ranks));
}

void check_ranks_divide_batch(const Config& config, int64_t ranks) {
  OOM_CHECK(ranks > 0, "ranks = ", ranks);
  Faults faults;
  check_batch(config, ranks, faults);
  faults.raise_if_any();
}

void check_rules(const Config& config, Faults& faults) {
  if (config.engine().ranks) check_batch(config, *config.engine().ranks, faults);
  check_data(config, faults);
  check_model(config, faults);
  check_eval(config, faults);
  check_train(config, faults);
  check_budget(config, faults);
}

}  // namespace oom::config
