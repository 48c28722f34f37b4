/// The enumerations of the configuration, and their words in TOML.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oom/plan.h"

namespace oom::config {

enum class WeightSource { kLoad, kRandom };
enum class DataFormat { kMegatron, kText };
enum class Documents { kJoined, kIsolated };
enum class TargetMask { kAuto, kNone };
enum class Schedule { kConstant, kCosine, kWsd };
enum class Updates { kOverlapped, kDeferred };
enum class Dtype { kBf16, kFp32 };
enum class DeviceKind { kAuto, kCuda, kCpu };
enum class Placement { kContiguous, kInterleaved };
enum class WeightSupply { kCached, kConvert };
enum class Delivery { kFull, kShard };
enum class GradientReduction { kGpu, kHost };
using oom::OrdinaryResidency;

/// Words of an enumeration, in the order of its enumerators.
template <typename E>
inline constexpr std::array<std::string_view, 0> kWords{};
template <>
inline constexpr std::array<std::string_view, 2> kWords<WeightSource>{"load", "random"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<DataFormat>{"megatron", "text"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<Documents>{"joined", "isolated"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<TargetMask>{"auto", "none"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<Schedule>{"constant", "cosine", "wsd"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<Updates>{"overlapped", "deferred"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<Dtype>{"bf16", "fp32"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<DeviceKind>{"auto", "cuda", "cpu"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<Placement>{"contiguous", "interleaved"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<OrdinaryResidency>{"none", "embedding", "all"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<WeightSupply>{"cached", "convert"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<Delivery>{"full", "shard"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<GradientReduction>{"gpu", "host"};

template <typename E>
std::string_view word(E choice) {
  static_assert(!kWords<E>.empty(), "an enumeration of the configuration");
  return kWords<E>[static_cast<size_t>(choice)];
}

/// The enumerator of `text`, or nothing when no enumerator has that word.
template <typename E>
std::optional<E> choice_of(std::string_view text) {
  for (size_t i = 0; i < kWords<E>.size(); ++i) {
    if (kWords<E>[i] == text) return static_cast<E>(i);
  }
  return std::nullopt;
}

/// The words of E, after "auto" when `with_auto`: for a schema.
template <typename E>
std::vector<std::string> words_of(bool with_auto = false) {
  std::vector<std::string> words(kWords<E>.begin(), kWords<E>.end());
  if (with_auto) words.insert(words.begin(), "auto");
  return words;
}

}  // namespace oom::config
