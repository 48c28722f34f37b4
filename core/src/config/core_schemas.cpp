#include <algorithm>

#include "config/config.h"

namespace oom::config {
namespace {

constexpr double kLargestCount = 1e15;  // exact in a double, and far from overflow when multiplied by small numbers

SettingRange count_from(double minimum) { return between(minimum, kLargestCount); }

/// A plugin's name becomes part of a file name.
std::string check_plugin_name(const SettingValue& value) {
  const std::string& name = std::get<std::string>(value);
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
  return plain ? "" : "must be the name of a plugin: lower-case letters, digits and _";
}

SettingsSchema model_schema() {
  return {.table = "model", .doc = "The model to train.", .settings = {
    {.key = "path", .forms = kTextForm, .fallback = "models/Qwen3-30B-A3B", .required = true, .text_form = "a path",
     .doc = "Folder in Hugging Face layout: config.json, and *.safetensors with their index when weights = \"load\"."},
    {.key = "weights", .words = words_of<WeightSource>(), .fallback = "load",
     .doc = "Where the initial weights come from: the folder's files, or Hugging Face's random initialisation."},
    {.key = "seed", .forms = kIntegerForm, .range = count_from(0), .fallback = int64_t{0},
     .doc = "Seed of random weights; each tensor has a generator of its own from the seed and its name, so ranks and plan do not matter."},
    {.key = "yarn_factor", .forms = kNumberForm, .range = between(1, 1024), .fallback = 1.0,
     .doc = "Above 1: rotary positions are stretched by YaRN with this factor, from the original length in config.json."},
    {.key = "layers", .forms = kIntegerForm, .unit = "layers", .range = between(1, 1 << 20), .left_out = "all of config.json's",
     .doc = "Trains a model of only the first so many decoder layers, from random weights: for experiments on less memory."},
  }};
}

SettingsSchema data_schema() {
  return {.table = "data", .doc = "The tokens to train on.", .settings = {
    {.key = "format", .words = words_of<DataFormat>(), .fallback = "megatron",
     .doc = "megatron: PREFIX.bin with PREFIX.idx, documents known; text: UTF-8 files or folders, one token a byte."},
    {.key = "path", .forms = kTextForm, .text_form = "a path", .left_out = "only commands that read no data can run",
     .doc = "Prefix of the .bin and .idx files, or a text file or folder."},
    {.key = "sequence_length", .forms = kIntegerForm, .unit = "tokens", .range = between(1, 1 << 30), .fallback = int64_t{4096},
     .doc = "Length S of a sample: sample i reads tokens i*S to i*S+S, of which the first S are inputs and the last S targets."},
    {.key = "documents", .words = words_of<Documents>(), .fallback = "joined",
     .doc = "joined: one stream; isolated: no attention, convolution, recurrence or position crosses a document, and targets in another document are ignored."},
    {.key = "shuffle_seed", .forms = kIntegerForm, .range = count_from(0), .left_out = "samples in order",
     .doc = "Seed by which samples are shuffled anew in each epoch."},
    {.key = "mask", .words = words_of<TargetMask>(), .fallback = "auto",
     .doc = "auto: PREFIX.mask, where there is one, says which tokens count as targets, as scripts/make_tokens writes it; none: every token counts."},
    {.key = "allow_change", .forms = kBoolForm, .fallback = false,
     .doc = "Lets --resume go on with another sequence_length, shuffle_seed or number of samples than the checkpoint's: samples may come twice or not at all."},
  }};
}

SettingsSchema train_schema() {
  return {.table = "train", .doc = "The optimisation.", .settings = {
    {.key = "steps", .forms = kIntegerForm, .unit = "steps", .range = count_from(1), .fallback = int64_t{100},
     .doc = "Total number of steps; a resumed run continues up to it."},
    {.key = "global_batch", .forms = kIntegerForm, .unit = "sequences", .range = between(1, 1 << 30), .fallback = int64_t{32},
     .doc = "Sequences a step over all ranks; a multiple of the number of ranks."},
    {.key = "learning_rate", .forms = kNumberForm, .range = at_least(0), .fallback = 1e-5, .doc = "Highest learning rate of the schedule."},
    {.key = "schedule", .words = words_of<Schedule>(), .fallback = "constant",
     .doc = "After the warm-up: constant; cosine falls to min_learning_rate at the last step; wsd stays and falls linearly over the last decay_steps."},
    {.key = "warmup_steps", .forms = kIntegerForm, .unit = "steps", .range = count_from(0), .fallback = int64_t{0},
     .doc = "Length w of the linear warm-up: step k of w uses k/w of the rate."},
    {.key = "decay_steps", .forms = kIntegerForm, .unit = "steps", .range = count_from(0), .fallback = int64_t{0},
     .doc = "Length of the fall at the end under schedule = \"wsd\"."},
    {.key = "min_learning_rate", .forms = kNumberForm, .range = at_least(0), .fallback = 0.0,
     .doc = "Learning rate at the last step under cosine and wsd."},
    {.key = "weight_decay", .forms = kNumberForm, .range = at_least(0), .fallback = 0.01, .doc = "Decoupled weight decay of AdamW."},
    {.key = "betas", .forms = kNumberListForm, .range = {.minimum = 0, .maximum = 1, .maximum_excluded = true},
     .fallback = std::vector<double>{0.9, 0.999}, .items = 2, .doc = "Decay rates of AdamW's first and second moment."},
    {.key = "eps", .forms = kNumberForm, .range = greater_than(0), .fallback = 1e-8,
     .doc = "Added by AdamW after the square root of the corrected second moment."},
    {.key = "clip_norm", .forms = kNumberForm, .range = at_least(0), .fallback = 0.0,
     .doc = "Largest norm of the whole gradient; 0 is off; clipping is exact, so it defers updates."},
    {.key = "updates", .words = words_of<Updates>(true), .fallback = "auto",
     .doc = "overlapped: during the backward pass; deferred: after it, layer by layer before the next forward; auto: deferred when clipping, else overlapped."},
    {.key = "router_aux_loss", .forms = kNumberForm, .range = at_least(0),
     .left_out = "config.json's coefficient if it asks for router logits, else 0", .doc = "Coefficient of the load-balancing loss of the routers."},
    {.key = "drain", .forms = kBoolForm, .fallback = false,
     .doc = "Ends each step only when transfers and updates are done and ranks have met: for benchmarks."},
    {.key = "decay_norms", .forms = kBoolForm, .fallback = true, .doc = "Whether norm weights, biases and other one-dimensional parameters decay."},
  }};
}

SettingsSchema precision_schema() {
  return {.table = "precision", .doc = "Number formats.", .settings = {
    {.key = "compute", .words = words_of<Dtype>(), .fallback = "bf16",
     .doc = "bf16: BF16 inputs and FP32 accumulation in matrix products; fp32: everything in FP32, the parity mode."},
    {.key = "gradients", .words = words_of<Dtype>(), .left_out = "as compute", .doc = "Format in which gradients leave the GPU."},
  }};
}

SettingsSchema engine_schema() {
  return {.table = "engine", .doc = "Devices, strategies and files that steer them.", .settings = {
    {.key = "device", .words = words_of<DeviceKind>(), .fallback = "auto", .doc = "Device of the ranks; auto: GPUs when there are any."},
    {.key = "ranks", .forms = kIntegerForm, .unit = "ranks", .range = between(1, 1024), .left_out = "every GPU; on the CPU device 1",
     .doc = "Number of ranks: one thread each, and one GPU each on the CUDA device."},
    {.key = "experts", .forms = kTextForm, .fallback = "auto", .text_form = "\"auto\" or the name of an expert strategy", .check = check_plugin_name,
     .doc = "Expert strategy: auto (the selector decides), ep, local, or another plugin of that kind."},
    {.key = "activations", .forms = kTextForm, .fallback = "offload", .text_form = "the name of an activation strategy", .check = check_plugin_name,
     .doc = "Activation strategy: offload, or another plugin of that kind."},
    {.key = "selector", .forms = kTextForm, .fallback = "selector", .text_form = "the name of a selector", .check = check_plugin_name,
     .doc = "Chooses the expert strategy when experts = \"auto\": selector, or another plugin of that kind."},
    {.key = "plan", .forms = kTextForm, .text_form = "a path", .left_out = "a plan is made", .doc = "Plan file to execute as it stands."},
    {.key = "calibration", .forms = kTextForm, .text_form = "a path", .left_out = "the one cached for this machine, else analytic costs",
     .doc = "Calibration file with the costs to plan with."},
    {.key = "plugin_path", .forms = kTextListForm, .fallback = std::vector<std::string>{}, .may_be_empty = true,
     .doc = "Folders searched for plugins, before the engine's own."},
    {.key = "allow_plan_mismatch", .forms = kBoolForm, .fallback = false,
     .doc = "Executes a plan made for another model, workload or machine instead of refusing it."},
    {.key = "deterministic", .forms = kBoolForm, .fallback = false,
     .doc = "On GPUs, gives attention a slower backward that repeats bit for bit, so that the same plan on the same GPUs gives the same losses and weights (docs/numerics.md)."},
    {.key = "watchdog_seconds", .forms = kNumberForm, .unit = "seconds", .range = between(0, 1e9), .fallback = 600.0,
     .doc = "Time without progress after which the run ends and names the stage that did not finish; 0 is off."},
  }};
}

SettingsSchema budget_schema() {
  return {.table = "budget", .doc = "Memory that the run may use.", .settings = {
    {.key = "gpu", .forms = kBytesForm, .range = between(1, 1e17), .left_out = "what the device has, less a margin",
     .doc = "Memory of each GPU; on the CPU device the same bound for each rank's device-side buffers."},
    {.key = "headroom", .forms = kBytesForm, .range = between(0, 1e17), .fallback = int64_t{1} << 30, .doc = "Part of the GPU budget that is kept free."},
    {.key = "host", .forms = kBytesForm | kBytesListForm, .range = between(1, 1e17), .left_out = "the cgroup's limit or the memory available, less a margin",
     .doc = "Host memory, as one size for the machine or one for each NUMA node; believed unless it is above the cgroup's limit."},
  }};
}

SettingsSchema state_schema() {
  return {.table = "state", .doc = "Where masters, moments and weights live, under every strategy.", .settings = {
    {.key = "resident", .forms = kIntegerForm | kIntegerListForm, .words = {"auto", "all", "none"}, .unit = "layers", .range = between(0, 1 << 20),
     .fallback = "auto", .distinct = true, .may_be_empty = true,
     .doc = "Layers whose expert shards live on their owners' GPUs: a count, or layer indices."},
    {.key = "placement", .words = words_of<Placement>(), .fallback = "interleaved",
     .doc = "Which layers a count n means: contiguous: the first n; interleaved: layers 0 and 1, and n-2 spread evenly over the rest."},
    {.key = "resident_ordinary", .words = words_of<OrdinaryResidency>(true), .fallback = "auto",
     .doc = "Which of attention, norms, routers, shared experts, embedding and head live on the GPUs: all, none, or the embedding alone, whose update on the host nothing hides."},
    {.key = "weights", .words = words_of<WeightSupply>(true), .fallback = "auto",
     .doc = "BF16 weights of streamed shards: cached keeps a copy in host memory, convert makes them from the masters at each delivery."},
    {.key = "resident_weights", .words = words_of<WeightSupply>(true), .fallback = "auto",
     .doc = "BF16 weights of shards that live on GPUs: cached keeps them beside their state (14 bytes a parameter), convert makes them when they are used (12)."},
  }};
}

SettingsSchema transfer_schema() {
  return {.table = "transfer", .doc = "Traffic between host and GPUs, under every strategy.", .settings = {
    {.key = "windows", .forms = kIntegerForm, .unit = "buffers", .range = between(1, 64), .fallback = int64_t{2},
     .doc = "Managed GPU buffers for parameters. 1: on a single GPU the embedding and the head take turns with a layer's experts."},
    {.key = "gradient_slots", .forms = kIntegerForm, .unit = "slots", .range = between(1, 64), .fallback = int64_t{2},
     .doc = "Host slots for gradients of ordinary parameters, and as many for expert shards. Left out, planning for GPUs may take more where updates are late."},
    {.key = "ordinary_gradient_slots", .forms = kIntegerForm, .unit = "slots", .range = between(1, 1024), .left_out = "gradient_slots, or more where planning finds them worth it",
     .doc = "Host slots for gradients of ordinary parameters, where these shall be another number: small, and they wait behind the updates of expert shards."},
    {.key = "h2d_chunk", .forms = kBytesForm, .range = between(4096, 1e12), .fallback = int64_t{64} << 20,
     .doc = "Size of one copy to a GPU; 64 to 512 MiB are worth trying."},
    {.key = "d2h_chunk", .forms = kBytesForm, .range = between(4096, 1e12), .fallback = int64_t{64} << 20, .doc = "Size of one copy from a GPU."},
    {.key = "ordinary_delivery", .words = words_of<Delivery>(true), .fallback = "auto",
     .doc = "How ordinary parameters reach the GPUs: full: a copy each from the host; shard: a slice each, then gathered between GPUs."},
    {.key = "gradient_reduction", .words = words_of<GradientReduction>(true), .fallback = "auto",
     .doc = "Where the ranks' gradients of ordinary parameters are summed: between GPUs, or in host memory inside the update."},
  }};
}

SettingsSchema checkpoint_schema() {
  return {.table = "checkpoint", .doc = "Saved training state, in the run folder.", .settings = {
    {.key = "every", .forms = kIntegerForm, .unit = "steps", .range = count_from(0), .fallback = int64_t{0},
     .doc = "Steps between checkpoints; 0: only at the end and when interrupted."},
    {.key = "at_end", .forms = kBoolForm, .fallback = true, .doc = "Whether the last step writes a checkpoint."},
    {.key = "keep", .forms = kIntegerForm, .unit = "checkpoints", .range = count_from(1), .fallback = int64_t{2}, .doc = "Newest checkpoints that are kept."},
    {.key = "keep_best", .forms = kIntegerForm, .unit = "checkpoints", .range = count_from(0), .fallback = int64_t{0},
     .doc = "Checkpoints of the lowest evaluation losses that are kept besides; each is evaluated before it is written, and checkpoints/best is a link to the best."},
  }};
}

SettingsSchema output_schema() {
  return {.table = "output", .doc = "The run folder.", .settings = {
    {.key = "dir", .forms = kTextForm, .fallback = "runs/run", .text_form = "a path",
     .doc = "Run folder; one that holds a run already is refused without --resume."},
    {.key = "overwrite", .forms = kBoolForm, .fallback = false, .doc = "Replaces a run that is in the folder already."},
    {.key = "trace_steps", .forms = kIntegerForm | kIntegerListForm, .unit = "steps", .range = between(1, kLargestCount), .distinct = true,
     .left_out = "no trace", .doc = "Steps to trace into trace.json: a count for the first ones, or a list of steps, counted from 1."},
    {.key = "expert_load_every", .forms = kIntegerForm, .unit = "steps", .range = count_from(0), .fallback = int64_t{100},
     .doc = "Steps between countings of tokens by layer and expert into expert_load.jsonl, the first and the last step besides; 0: never."},
    {.key = "tensorboard", .forms = kBoolForm, .fallback = true, .doc = "Whether the numbers of metrics.jsonl go into TensorBoard event files as well, under tensorboard/."},
  }};
}

SettingsSchema eval_schema() {
  return {.table = "eval", .doc = "Held-out data: evaluated during training, and by `oom eval`, which without any reads the training data.", .settings = {
    {.key = "every", .forms = kIntegerForm, .unit = "steps", .range = count_from(0), .fallback = int64_t{0},
     .doc = "Steps between evaluations; 0: none, except before checkpoints when checkpoint.keep_best asks for them."},
    {.key = "path", .forms = kTextForm, .text_form = "a path", .left_out = "no files of its own", .doc = "Held-out data, as data.path."},
    {.key = "format", .words = words_of<DataFormat>(), .left_out = "as data.format", .doc = "Format of eval.path."},
    {.key = "holdout_samples", .forms = kIntegerForm, .unit = "samples", .range = count_from(0), .fallback = int64_t{0},
     .doc = "Last samples of the training data that are not trained on and evaluated instead; not together with eval.path."},
    {.key = "samples", .forms = kIntegerForm, .unit = "samples", .range = count_from(1), .left_out = "every sample once", .doc = "Number of samples evaluated, from the first."},
  }};
}

}  // namespace

const std::vector<SettingsSchema>& core_schemas() {
  static const std::vector<SettingsSchema> schemas{model_schema(),  data_schema(),     train_schema(),      precision_schema(),
                                                   engine_schema(), budget_schema(),   state_schema(),      transfer_schema(),
                                                   checkpoint_schema(), output_schema(), eval_schema()};
  return schemas;
}

}  // namespace oom::config
