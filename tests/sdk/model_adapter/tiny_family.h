/// A model family made of the core's own operators: causal attention and routed experts in every layer.
///
/// What an adapter does: it recognises a config.json, describes the model as data, and builds the two halves of each layer. Everything
/// else (layout, loading, planning, checkpoints, export) reads the description and never asks which family it is.
#pragma once

#include <oom/host_services.h>
#include <oom/model_adapter.h>

#include <memory>

namespace tiny_family {

class TinyFamily final : public oom::ModelAdapter {
 public:
  explicit TinyFamily(const oom::HostServices&) {}

  bool accepts(const oom::ModelConfig& config) const override;
  oom::ModelDescription describe(const oom::ModelConfig& config, const oom::ModelOptions& options) const override;
  std::unique_ptr<oom::Mixer> mixer(const oom::ModelDescription& description, int layer) const override;
  std::unique_ptr<oom::FeedForward> feed_forward(const oom::ModelDescription& description, int layer) const override;
  FinalNorm final_norm(const oom::ModelDescription& description) const override;
};

}  // namespace tiny_family
