// The gated delta rule's CUDA kernels on the emulated device: a change that breaks them fails where no GPU is.
#include "delta_rule_case.h"
#include "emulated_cuda/emulated_device.h"
#include "ops/gated_delta_rule_cuda.h"

namespace oom::ops {
namespace {

using namespace testing;

class DeltaRuleEmulatedTest : public DeltaRuleKernelTest {
 protected:
  void TearDown() override {
    emulated_cuda::device() = {};
    DeltaRuleKernelTest::TearDown();
  }

  DeltaRuleResults computed(const Operands& o) override {
    const auto rows = [](const at::Tensor& x) { return TokenRows{x.data_ptr(), x.stride(0)}; };
    const auto floats = [](const at::Tensor& x) { return x.data_ptr<float>(); };
    DeltaRuleShape shape{.tokens = o.in.q.size(0), .sequences = o.segments.sequences, .segments = o.segments.count(), .key_heads = o.in.k.size(1),
                         .value_heads = o.in.v.size(1), .key_dim = kDim, .value_dim = kDim, .scale = static_cast<float>(o.in.scale)};
    if (pass_slots_ > 0) shape.pass_slots = pass_slots_;
    EXPECT_EQ(delta_rule_refusal_cuda(shape), nullptr);
    const int32_t* starts = o.host_starts.empty() ? nullptr : o.host_starts.data();
    const DeltaRuleOperands in{.shape = shape, .q = rows(o.in.q), .k = rows(o.in.k), .v = rows(o.in.v), .log_decay = floats(o.in.log_decay),
                               .beta = floats(o.in.beta), .starts = starts, .host_starts = starts, .initial_state = floats(o.initial_state)};
    const auto workspace = [&](bool backward) {
      return at::full({(delta_rule_workspace_bytes_cuda(shape, backward) + 3) / 4}, std::numeric_limits<float>::quiet_NaN(), fp32());
    };
    DeltaRuleResults r = unwritten(o);
    const at::Tensor forward = workspace(false), backward = workspace(true);
    delta_rule_forward_cuda({.in = in, .out = r.out.data_ptr(), .final_state = floats(r.final_state), .workspace = forward.data_ptr()}, nullptr);
    delta_rule_backward_cuda({.in = in, .dout = o.dout.data_ptr(), .d_final_state = floats(o.d_final_state), .dq = rows(r.dq), .dk = rows(r.dk),
                              .dv = rows(r.dv), .d_log_decay = floats(r.d_log_decay), .d_beta = floats(r.d_beta),
                              .d_initial_state = floats(r.d_initial_state), .workspace = backward.data_ptr()},
                             nullptr);
    return r;
  }

  int64_t pass_slots_ = 0;  ///< 0: the kernels' own
};

// A build without CUDA plans for machines that have it: what is told there is what the kernels take, not the form in which it would run itself.
TEST(DeltaRuleWorkspace, IsPlannedWithoutCudaAsItIsCut) {
  for (const int64_t tokens : {1, 64, 4097, 32768, 131072}) {
    for (const bool backward : {false, true}) {
      const DeltaRuleShape shape{.tokens = tokens, .segments = 3, .key_heads = 16, .value_heads = 32};
      const DeltaRuleProblem problem{.device = c10::DeviceType::CUDA, .dtype = at::kBFloat16, .tokens = tokens, .segments = 3, .key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128};
      EXPECT_EQ(gated_delta_rule_workspace_bytes(problem, backward), delta_rule_workspace_bytes_cuda(shape, backward)) << tokens << (backward ? " backward" : " forward");
    }
  }
}

TEST_P(DeltaRuleEmulatedTest, AgreesWithTheTokenRecurrenceAtLeftOverLengths) {
  for (const int64_t length : {1, 64, 65}) check({.length = length}, std::to_string(length) + " tokens");
}

TEST_P(DeltaRuleEmulatedTest, AgreesForDocumentsAndThreeHeadsAKeyHead) {
  check({.batch = 2, .length = 75, .value_heads = 3, .starts = {0, 0, 30, 75, 75, 139, 150, 150}}, "documents");
}

TEST_P(DeltaRuleEmulatedTest, AgreesInWhateverOrderWarpsRun) {
  emulated_cuda::device().order = emulated_cuda::Order::kBackwards;
  check({.length = 130, .alike = 0.8, .eager = 2}, "backwards");
}

TEST_P(DeltaRuleEmulatedTest, AgreesWithTheSharedMemoryOfAnA100) {
  emulated_cuda::device().shared_bytes_limit = 163 << 10;
  check({.length = 130}, "163 KiB");
}

TEST_P(DeltaRuleEmulatedTest, AgreesOverSeveralPasses) {
  pass_slots_ = 4;
  check({.length = 260}, "two tiles a pass");
  check({.batch = 2, .length = 140, .starts = {0, 20, 20, 130, 140, 200, 280}}, "documents across passes");
}

INSTANTIATE_TEST_SUITE_P(Places, DeltaRuleEmulatedTest, ::testing::Values(Place{c10::DeviceType::CPU, at::kBFloat16}), place_name);

}  // namespace
}  // namespace oom::ops
