/// What stage actions share with the engine while a program runs: this step's batch, hyper-parameters, counters and results.
/// Written by the engine between steps, or by one stage that others are ordered after.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "optim/adamw.h"

namespace oom::runtime {

struct StepResult {
  double loss_sum = 0;        ///< cross entropy over valid targets, in nats, all ranks
  int64_t valid_tokens = 0;
  double aux_loss = 0;        ///< before its coefficient
  double grad_norm = 0;       ///< before clipping; 0 in evaluation
  std::vector<std::vector<int64_t>> expert_load;  ///< choices by layer and expert, all ranks; zeros where a layer does not route; empty unless asked for
  double loss() const { return valid_tokens > 0 ? loss_sum / static_cast<double>(valid_tokens) : 0.0; }
};

/// Isolated documents of a rank's batch, laid end to end.
struct DocumentLimits {
  int64_t count = 0;          ///< limits: documents + 1
  int64_t longest_tokens = 0;
};

struct RunState {
  int64_t valid_tokens = 0;   ///< targets of the global batch that count
  std::vector<DocumentLimits> documents;  ///< by rank; empty when documents are joined
  int64_t first_step = 1;     ///< no update is pending from before this step
  double clip_norm = 0;
  double aux_coefficient = 0;
  bool decay_norms = true;
  /// Rate, betas, eps and decay of a step (its shard counter is filled in by the update). A pure function of the step.
  std::function<optim::AdamWStep(int64_t step)> hyper;
  /// Whether a training step counts tokens by expert. Empty: none does, and programs have no stages for it. Set before programs are emitted.
  std::function<bool(int64_t step)> counts_experts;
  StepResult result;
};

}  // namespace oom::runtime
