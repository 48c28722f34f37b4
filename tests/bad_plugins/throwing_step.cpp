// An activation strategy that works, until its moment comes: [throwing_step] says where it throws, and what.
#include <oom/plugin.h>
#include <oom/settings.h>

#include <stdexcept>
#include <string>

#include "../sdk/activation_strategy/on_device.h"

namespace {

class PrivateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void fail(const std::string& what) {
  if (what == "file") throw oom::FileError("parts.bin: byte 12 is wrong");
  if (what == "private") throw PrivateError("a class of the plugin's own");
  if (what == "number") throw 3;
}

class ThrowingStep final : public on_device::OnDevice {
 public:
  explicit ThrowingStep(const oom::HostServices& services) : OnDevice(services) {
    if (services.settings == nullptr) return;
    where_ = services.settings->get_text("where");
    what_ = services.settings->get_text("what");
  }
  static const oom::SettingsSchema& settings_schema() {
    static const oom::SettingsSchema schema{
        .table = "throwing_step",
        .doc = "Where to throw, and what.",
        .settings = {{.key = "where", .words = {"configure", "emit", "step"}, .fallback = std::string("step"), .doc = "The call that throws."},
                     {.key = "what", .words = {"file", "private", "number"}, .fallback = std::string("private"), .doc = "What it throws."}}};
    return schema;
  }
  void configure(const oom::ModelDescription& model, oom::Plan& plan) const override {
    OnDevice::configure(model, plan);
    if (where_ == "configure") fail(what_);
  }
  void emit_training(oom::StepEmitter& emitter) override {
    OnDevice::emit_training(emitter);
    if (where_ == "emit") fail(what_);
    if (where_ != "step") return;
    emitter.program().emit({.kind = "mischief", .layer = 1, .rank = 0, .lane = {oom::Lane::kIssue, 0}, .action = [what = what_](oom::StageContext& context) {
                              if (context.step == 2) fail(what);
                            }});
  }

 private:
  std::string where_, what_;
};

}  // namespace

OOM_PLUGIN(ThrowingStep, oom::Kind::kActivationStrategy, "throwing_step", "1.0.0", "Throws in the middle of a step")
