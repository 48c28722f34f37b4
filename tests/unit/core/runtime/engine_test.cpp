// The engine as a whole on the CPU device: bit-identical under delays and poison, every failure ends the run, and the next one works.
#include "runtime/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <set>
#include <thread>
#include <tuple>

#include "engine_run.h"

namespace oom::runtime {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 4;

struct Trained {
  std::vector<double> losses, norms;
  std::vector<float> state;
  bool operator==(const Trained&) const = default;
};

// By expert strategy and by when updates happen.
class EngineTest : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  std::vector<std::string> overrides() const { return {cat("engine.experts=", std::get<0>(GetParam())), std::get<1>(GetParam())}; }

  Trained train(EngineOptions options = {}, const std::vector<std::string>& more = {}) {
    std::vector<std::string> settings = overrides();
    settings.insert(settings.end(), more.begin(), more.end());
    EngineRun run(config_, settings, std::move(options));
    Trained trained;
    for (int step = 1; step <= kSteps; ++step) {
      const StepResult result = run.train(step);
      trained.losses.push_back(result.loss());
      trained.norms.push_back(result.grad_norm);
    }
    trained.state = run.state();
    return trained;
  }

  oom::testing::ScratchFolder folder_;
  std::string config_ = write_run(folder_);
};

INSTANTIATE_TEST_SUITE_P(All, EngineTest,
                         ::testing::Combine(::testing::Values("local", "ep"), ::testing::Values("train.updates=overlapped", "train.updates=deferred", "train.clip_norm=0.5")),
                         [](const auto& info) {
                           const std::string setting = std::get<1>(info.param);
                           return cat(std::get<0>(info.param), "_", setting.ends_with("0.5") ? "clipped" : setting.substr(setting.find('=') + 1));
                         });

TEST_P(EngineTest, Learns) {
  const Trained trained = train();
  EXPECT_NEAR(trained.losses[0], std::log(kVocabulary), 0.5);
  EXPECT_GT(trained.norms[0], 0);
  EXPECT_NE(trained.losses[1], trained.losses[0]);
}

TEST_P(EngineTest, DelaysChangeNoBit) {
  const Trained expected = train();
  for (unsigned seed = 1; seed <= 3; ++seed) {
    EngineOptions options;
    options.before_stage = [seed, calls = std::make_shared<std::atomic<unsigned>>(0)](const StageContext&) {
      std::minstd_rand generator(seed * 7919 + calls->fetch_add(1));
      generator.discard(3);
      if (generator() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(generator() % 1500));
    };
    EXPECT_TRUE(train(options) == expected) << "delays of seed " << seed;
  }
}

// State on the host or on the owners' devices, weights kept or made, every delivery: the same sums, products and roundings in the same order.
const std::vector<std::vector<std::string>> kStateChoices{
    {"state.resident=all"},
    {"state.resident=[1]"},
    {"state.resident=all", "state.resident_ordinary=all"},
    {"state.resident=2", "state.resident_ordinary=all", "state.resident_weights=cached"},
    {"state.resident_ordinary=all"},
    {"state.resident_ordinary=embedding"},
    {"state.resident=[1]", "state.resident_ordinary=embedding", "state.resident_weights=cached", "transfer.ordinary_gradient_slots=3"},
    {"state.resident=[0, 2]", "state.resident_weights=cached", "state.weights=convert"},
    {"state.weights=convert"},
    {"state.weights=convert", "local.delivery=full", "transfer.ordinary_delivery=full"},
    {"transfer.windows=1", "transfer.gradient_slots=1", "state.weights=convert"},
};

TEST_P(EngineTest, WhereStateLivesChangesNoBit) {
  const Trained expected = train();
  for (const std::vector<std::string>& choice : kStateChoices) EXPECT_TRUE(train({}, choice) == expected) << ::testing::PrintToString(choice);
  for (const char* ranks : {"engine.ranks=1", "engine.ranks=4"}) {
    const Trained of_ranks = train({}, {ranks});
    for (std::vector<std::string> choice : {kStateChoices[3], kStateChoices[5]}) {
      choice.push_back(ranks);
      EXPECT_TRUE(train({}, choice) == of_ranks) << ::testing::PrintToString(choice);
    }
  }
}

// With one window the vocabulary takes turns with the experts of a layer: its weights, and its gradients where neither has gaps, which are summed along.
TEST_P(EngineTest, TakingTurnsChangesNoBit) {
  for (const auto& [vocabulary, tied] : {std::pair(kVocabulary, false), std::pair(int64_t{192}, false), std::pair(int64_t{192}, true)}) {
    config_ = write_run(folder_, vocabulary, tied);
    for (const char* compute : {"precision.compute=fp32", "precision.compute=bf16"}) {
      const std::vector<std::string> apart{"engine.ranks=1", "state.resident=none", "state.resident_ordinary=none", "offload.moe_chunk=33", "offload.keep_boundaries=1+1", compute};
      std::vector<std::string> in_turn = apart;
      in_turn.push_back("transfer.windows=1");
      EXPECT_TRUE(train({}, in_turn) == train({}, apart)) << vocabulary << (tied ? " tied " : " ") << compute;
    }
  }
}

// The memory that one window saves beside that of the second buffers.
TEST(EngineMemory, VocabularyTakesTurnsWithABank) {
  oom::testing::ScratchFolder folder;
  const auto own = [&](int64_t vocabulary, bool tied, int ranks, const char* what) {
    Session session(write_run(folder, vocabulary, tied), {cat("engine.ranks=", ranks), "engine.experts=local", "transfer.windows=1", "state.resident=none", "state.resident_ordinary=none"});
    const PlannedRun run = make_plan(session);
    int buffers = 0;
    for (BufferId id = 0; id < static_cast<BufferId>(run.program.buffers.size()); ++id) {
      const Buffer& buffer = run.program.buffers[id];
      buffers += buffer.place.kind == Place::Kind::kGpu && buffer.storage == id && buffer.name.starts_with("vocabulary") && buffer.name.find(what) != std::string::npos;
    }
    return buffers;
  };
  EXPECT_EQ(own(192, false, 1, " window "), 0);
  EXPECT_EQ(own(192, false, 1, " gradient "), 0);
  EXPECT_EQ(own(kVocabulary, false, 1, " window "), 0);
  EXPECT_EQ(own(kVocabulary, false, 1, " gradient "), 1);  // padded: has gaps
  EXPECT_EQ(own(192, true, 1, " window "), 0);
  EXPECT_EQ(own(192, true, 1, " gradient "), 1);  // there from the head to the end of the step
  EXPECT_EQ(own(192, false, 2, " window "), 4);   // shards have other borders than those of banks
}

TEST_P(EngineTest, WhereStateLivesChangesNoBitInBfloat16) {
  const std::string bf16 = "precision.compute=bf16";
  const Trained expected = train({}, {bf16});
  for (std::vector<std::string> choice : {kStateChoices[2], kStateChoices[3], kStateChoices[5], kStateChoices[7]}) {
    choice.push_back(bf16);
    EXPECT_TRUE(train({}, choice) == expected) << ::testing::PrintToString(choice);
  }
}

// Some updates in the backward, some in the next forward, with state in both kinds of places.
TEST_P(EngineTest, HowManyUpdatesWaitChangesNoBit) {
  if (std::string(std::get<1>(GetParam())) != "train.updates=overlapped") GTEST_SKIP() << "all wait here";
  const std::vector<std::string> resident{"state.resident=[1]"};
  const Trained expected = train({}, resident);
  std::vector<std::string> settings = overrides();
  settings.insert(settings.end(), resident.begin(), resident.end());
  Plan plan = EngineRun(config_, settings).plan();
  for (const int waiting : {1, 2, 3}) {
    plan.deferred_layers = waiting;
    oom::testing::write_file(folder_ / "plan.toml", plan::plan_toml(plan));
    EXPECT_TRUE(train({}, {cat("engine.plan=\"", (folder_ / "plan.toml").string(), "\"")}) == expected) << waiting;
  }
}

// The update sums the ranks' partials itself, in the same order. Only the sum of squares is taken in another, in double.
TEST_P(EngineTest, ReductionOnTheHostAgrees) {
  for (const char* ranks : {"engine.ranks=1", "engine.ranks=2", "engine.ranks=4"}) {
    const Trained expected = train({}, {ranks});
    std::vector<std::string> settings = overrides();
    settings.push_back(ranks);
    Plan plan = EngineRun(config_, settings).plan();  // the same in everything else: left open, choices may follow the reduction
    plan.transfer.reduce_on_gpu = false;
    oom::testing::write_file(folder_ / "plan.toml", plan::plan_toml(plan));
    const Trained got = train({}, {ranks, cat("engine.plan=\"", (folder_ / "plan.toml").string(), "\"")});
    ASSERT_EQ(got.state.size(), expected.state.size());
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(got.losses[step], expected.losses[step], 1e-6 * expected.losses[step]);
      EXPECT_NEAR(got.norms[step], expected.norms[step], 1e-6 * expected.norms[step]);
    }
    const bool clips = std::string(std::get<1>(GetParam())).ends_with("0.5");
    if (!clips) {
      EXPECT_TRUE(got.state == expected.state) << ranks;
    }
  }
}

TEST_P(EngineTest, DelaysAndPoisonChangeNoBitWhereverStateLives) {
  for (const std::vector<std::string>& choice : {kStateChoices[3], kStateChoices[5], std::vector<std::string>{"transfer.gradient_reduction=host", "state.weights=convert"}}) {
    const Trained expected = train({}, choice);
    EngineOptions options;
    options.poison = true;
    options.before_stage = [calls = std::make_shared<std::atomic<unsigned>>(0)](const StageContext&) {
      std::minstd_rand generator(calls->fetch_add(1));
      generator.discard(3);
      if (generator() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(generator() % 1500));
    };
    EXPECT_TRUE(train(options, choice) == expected) << ::testing::PrintToString(choice);
  }
}

// Counts what it copies, and leaves the work to the CPU device's.
class CountingTransfer final : public comm::DeviceTransfer {
 public:
  explicit CountingTransfer(std::atomic<int64_t>& copied) : copied_(copied) {}
  void copy(void* to, const void* from, int64_t bytes, int64_t chunk_bytes, void* stream) override {
    copied_ += bytes;
    device_->copy(to, from, bytes, chunk_bytes, stream);
  }
  void zero(void* data, int64_t bytes, void* stream) override { device_->zero(data, bytes, stream); }
  void sum_partials(void* out, ElementType out_type, std::span<const void* const> partials, ElementType partial_type, int64_t count, double* sum_of_squares, void* scratch,
                    void* stream) override {
    device_->sum_partials(out, out_type, partials, partial_type, count, sum_of_squares, scratch, stream);
  }
  void copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width, int64_t rows, void* stream) override {
    device_->copy_rows(to, to_pitch, from, from_pitch, width, rows, stream);
  }
  void update_state(const optim::AdamWJob& job, std::span<const optim::ElementRange> ranges, const double* sum_of_squares, void* stream) override {
    device_->update_state(job, ranges, sum_of_squares, stream);
  }
  void make_weights(const optim::StateBlocks& state, const optim::Publish& publish, void* stream) override { device_->make_weights(state, publish, stream); }

 private:
  std::atomic<int64_t>& copied_;
  std::unique_ptr<comm::DeviceTransfer> device_ = comm::DeviceTransfer::make(DeviceKind::kCpu);
};

// Plans are judged by the stages' costs: what a step copies is what they say, to the byte.
TEST(EngineTraffic, ProgramsSayWhatIsCopied) {
  const oom::testing::ScratchFolder folder;
  // Every token takes all of the 16 experts: routing is even, as the costs of an exchange assume.
  const std::string config = write_run(folder, kVocabulary, /*tied=*/false, /*top_k=*/16);
  constexpr int kRanks = 4;
  const std::vector<std::string> full{"local.delivery=full", "transfer.ordinary_delivery=full"}, chunks{"engine.experts=ep", "ep.routing_chunk=7"};
  std::vector<std::vector<std::string>> choices{{}, full, {"state.weights=convert"}, {"transfer.gradient_reduction=host"}, {"state.resident=[1]", "state.resident_ordinary=all"}, {"state.resident_ordinary=embedding"}};
  choices.insert(choices.end(), {{"engine.experts=ep"}, chunks, {chunks[0], chunks[1], "ep.receive_rows=50", "ep.retain=[0, 2]", "ep.retain_rows=100"}, {chunks[0], "ep.receive_rows=50", "ep.retain=all", "state.resident=[1]"}});
  for (std::vector<std::string> choice : choices) {
    choice.insert(choice.end(), {cat("engine.ranks=", kRanks), "precision.compute=bf16", "train.updates=overlapped"});
    std::atomic<int64_t> copied{0};
    EngineRun run(config, choice, {}, std::make_unique<CountingTransfer>(copied));
    double said = 0;
    const Program& program = run.engine().training_program();
    for (const Stage& stage : program.stages) {
      said += stage.cost.h2d_bytes + stage.cost.d2h_bytes + stage.cost.peer_bytes;
      // What a rank sends to itself in an exchange crosses no link.
      if (program.kinds[stage.kind] == "experts_dispatch" || program.kinds[stage.kind] == "experts_return") said += stage.cost.peer_bytes / (kRanks - 1);
    }
    run.train(1);
    run.engine().drain();
    EXPECT_EQ(static_cast<double>(copied.load()), said) << ::testing::PrintToString(choice);
  }
}

// The device's update sees by itself that a gradient is not finite; the host hears of it later.
TEST_P(EngineTest, ANonFiniteGradientChangesNoResidentState) {
  std::vector<std::string> settings = overrides();
  // Experts of a rank that no token chose have gradient 0, which is finite: decay alone would change them before the host hears of the others.
  settings.insert(settings.end(), {"state.resident=all", "state.resident_ordinary=all", "train.weight_decay=0"});
  EngineOptions options;
  options.before_stage = [](const StageContext& context) {
    if (context.stage->lane.lane == Lane::kUpdate) std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the host hears late
  };
  EngineRun run(config_, settings, options);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  run.engine().state().write(2, optim::StatePart::kMaster, 5, std::span(&nan, 1));
  run.engine().publish_weights();
  const std::vector<float> before = run.state();
  EXPECT_THROW(
      {
        for (int step = 1; step <= 2; ++step) run.train(step);
      },
      DivergedError);
  // Everything downstream of the first layer's weight is NaN, so no gradient is finite: no shard may have been touched.
  const std::vector<float> after = run.state_as_it_is();
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < before.size(); ++i) ASSERT_TRUE(after[i] == before[i] || (std::isnan(after[i]) && std::isnan(before[i]))) << i << ": " << before[i] << " became " << after[i];
}

// What was never written is NaN then: nothing of it may reach a result.
TEST_P(EngineTest, PoisonedMemoryChangesNoBit) {
  EngineOptions options;
  options.poison = true;
  EXPECT_TRUE(train(options) == train());
}

TEST_P(EngineTest, AFailureInAnyLaneEndsTheRunAndTheNextRunWorks) {
  const Trained expected = train();
  std::set<Lane> lanes;
  {
    EngineRun run(config_, overrides());
    for (const Stage& stage : run.engine().training_program().stages) lanes.insert(stage.lane.lane);
  }
  // Nothing is prepared while weights are cached.
  EXPECT_EQ(lanes, (std::set<Lane>{Lane::kCompute, Lane::kComm, Lane::kH2d, Lane::kD2h, Lane::kD2hExpert, Lane::kIssue, Lane::kUpdate}));
  for (const Lane lane : lanes) {
    EngineOptions options;
    options.before_stage = [lane](const StageContext& context) {
      if (context.stage->lane.lane == lane && context.step == 2) throw DeviceError("injected failure");
    };
    const auto begin = std::chrono::steady_clock::now();
    try {
      train(options);
      ADD_FAILURE() << "a failure on lane " << lane_name(lane) << " went unnoticed";
    } catch (const DeviceError& error) {
      EXPECT_THAT(error.what(), HasSubstr("injected failure"));
      EXPECT_THAT(error.what(), HasSubstr(cat("(", lane_name(lane))));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << lane_name(lane);
  }
  EXPECT_TRUE(train() == expected);
}

TEST_P(EngineTest, WatchdogNamesTheStageThatHangs) {
  EngineOptions options;
  options.watchdog_seconds = 0.5;
  options.before_stage = [](const StageContext& context) {
    if (context.step != 2 || context.stage->lane != LaneId{Lane::kH2d, 1}) return;
    while (!context.aborted()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  try {
    train(options);
    ADD_FAILURE() << "the watchdog let it hang";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("watchdog"));
    EXPECT_THAT(error.what(), HasSubstr("rank 1 (h2d, stage "));
  }
}

TEST_P(EngineTest, ANonFiniteWeightDivergesAndIsNamed) {
  EngineRun run(config_, overrides());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  run.engine().state().write(2, optim::StatePart::kMaster, 5, std::span(&nan, 1));
  run.engine().publish_weights();
  try {
    for (int step = 1; step <= kSteps; ++step) run.train(step);
    run.engine().drain();
    ADD_FAILURE() << "trained on NaN";
  } catch (const DivergedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("step 1"));
    EXPECT_THAT(error.what(), HasSubstr("rank "));
  }
}

// Most ranks and rows have nothing to say then; the mean is over the one target that counts.
TEST_P(EngineTest, AllTargetsIgnoredButOne) {
  std::vector<double> losses;
  for (const char* ranks : {"engine.ranks=1", "engine.ranks=2", "engine.ranks=4"}) {
    std::vector<std::string> settings = overrides();
    settings.push_back(ranks);
    EngineRun run(config_, settings);
    std::vector<data::Batch> batches = run.batches(1);
    for (data::Batch& batch : batches) {
      for (int32_t& target : batch.targets) target = data::kIgnoredTarget;
      batch.valid_targets = 0;
    }
    data::Batch& last = batches.back();
    last.targets.back() = 11;
    last.valid_targets = 1;
    const double before = run.engine().evaluate(batches).loss();
    const StepResult step = run.engine().train_step(1, batches);
    EXPECT_EQ(step.valid_tokens, 1);
    EXPECT_NEAR(step.loss(), before, 1e-6 * before);
    EXPECT_TRUE(std::isfinite(step.grad_norm) && step.grad_norm > 0);
    losses.push_back(step.loss());
    EXPECT_LT(run.engine().evaluate(batches).loss(), before);
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-5 * losses[0]);
  EXPECT_NEAR(losses[2], losses[0], 1e-5 * losses[0]);
}

// Pieces of 3, 13 and 16 tokens: what lies before a limit must not matter to what lies behind it.
TEST_P(EngineTest, IsolatedDocumentsSeeNothingOfEachOther) {
  // The rows of other tokens still share products with these: equal to rounding, not to the bit.
  const auto loss_of = [&](const char* documents, int32_t first_token) {
    std::vector<std::string> settings = overrides();
    settings.push_back(documents);
    EngineRun run(config_, settings);
    std::vector<data::Batch> batches = run.batches(1);
    for (data::Batch& batch : batches) {
      batch.document_begins = {{0, 3, 16}, {0, 16}};
      for (int t = 3; t < 16; ++t) batch.positions[t] = t - 3;
      for (int t = 0; t < 3; ++t) {
        batch.inputs[t] = first_token;
        batch.targets[t] = data::kIgnoredTarget;
      }
      batch.valid_targets -= 3;
    }
    return run.engine().train_step(1, batches).loss();
  };
  EXPECT_NEAR(loss_of("data.documents=isolated", 5), loss_of("data.documents=isolated", 77), 1e-6);
  EXPECT_GT(std::abs(loss_of("data.documents=joined", 5) - loss_of("data.documents=joined", 77)), 1e-4);
}

// Evaluation between steps drains what is pending and disturbs nothing.
TEST_P(EngineTest, EvaluationBetweenStepsChangesNoBit) {
  const Trained expected = train();
  EngineRun run(config_, overrides());
  Trained trained;
  for (int step = 1; step <= kSteps; ++step) {
    const StepResult result = run.train(step);
    trained.losses.push_back(result.loss());
    trained.norms.push_back(result.grad_norm);
    run.engine().evaluate(run.batches(step));
  }
  trained.state = run.state();
  EXPECT_TRUE(trained == expected);
}

}  // namespace
}  // namespace oom::runtime
