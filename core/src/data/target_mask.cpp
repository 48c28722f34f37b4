#include "data/target_mask.h"

#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "data/megatron_tokens.h"
#include "oom/error.h"

namespace oom::data {
namespace {

constexpr int64_t kPieceBytes = 1 << 20;

int64_t mask_bytes(int64_t tokens) { return tokens / 8 + (tokens % 8 != 0); }

}  // namespace

TargetMask::TargetMask(const std::filesystem::path& path, int64_t token_count) : file_(base::File::open(path)), token_count_(token_count) {
  const auto refuse = [&](const auto&... why) { throw FileError(cat(path.string(), ": ", why...)); };
  std::array<std::byte, kMaskHeaderBytes> header;
  if (file_.size_bytes() < kMaskHeaderBytes) refuse("too short for a mask: ", file_.size_bytes(), " bytes, its header alone has ", kMaskHeaderBytes);
  file_.read_at(0, header);
  if (std::memcmp(header.data(), kMaskMagic.data(), kMaskMagic.size()) != 0) refuse("does not begin with OOMMASK: no mask of targets");
  uint64_t version, tokens;
  std::memcpy(&version, header.data() + 8, sizeof version);
  std::memcpy(&tokens, header.data() + 16, sizeof tokens);
  if (version != 1) refuse("mask version must be 1; got ", version);
  if (tokens != static_cast<uint64_t>(token_count)) refuse("is the mask of ", tokens, " tokens; the files beside it hold ", token_count, ": make them anew together");
  const int64_t wanted = kMaskHeaderBytes + mask_bytes(token_count);
  if (file_.size_bytes() != wanted) refuse("must have ", wanted, " bytes for ", token_count, " tokens; got ", file_.size_bytes());
  if (token_count % 8 == 0) return;
  std::array<std::byte, 1> last;
  file_.read_at(wanted - 1, last);
  if (std::to_integer<int>(last[0]) >> (token_count % 8) != 0) refuse("has bits set beyond its last token: damaged");
}

std::unique_ptr<const TargetMask> TargetMask::find(const std::filesystem::path& prefix, int64_t token_count) {
  std::filesystem::path path = megatron_prefix(prefix);
  path += ".mask";
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? std::make_unique<const TargetMask>(path, token_count) : nullptr;
}

int64_t TargetMask::apply(int64_t begin, std::span<int32_t> targets, int32_t ignored) const {
  const int64_t end = begin + static_cast<int64_t>(targets.size());
  OOM_CHECK(begin >= 0 && end <= token_count_, "targets [", begin, ", ", end, ") of ", token_count_);
  if (targets.empty()) return 0;
  std::vector<std::byte> bits(static_cast<size_t>(mask_bytes(end) - begin / 8));
  file_.read_at(kMaskHeaderBytes + begin / 8, bits);
  int64_t replaced = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const size_t bit = static_cast<size_t>(begin % 8) + i;
    if ((std::to_integer<int>(bits[bit / 8]) >> (bit % 8)) & 1) continue;
    if (targets[i] == ignored) continue;
    targets[i] = ignored;
    ++replaced;
  }
  return replaced;
}

int64_t TargetMask::count() const {
  int64_t counted = 0;
  std::vector<std::byte> bits;
  for (int64_t at = kMaskHeaderBytes; at < file_.size_bytes(); at += kPieceBytes) {
    bits.resize(static_cast<size_t>(std::min(kPieceBytes, file_.size_bytes() - at)));
    file_.read_at(at, bits);
    for (const std::byte byte : bits) counted += std::popcount(std::to_integer<uint8_t>(byte));
  }
  return counted;
}

}  // namespace oom::data
