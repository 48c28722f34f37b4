// Damaged plugin files: whatever the bytes say, the reader answers with facts or a FileError, within bounds.
#include <elf.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "oom/error.h"
#include "plugin/plugin_inspect.h"

namespace oom::plugin {
namespace {

/// A file in memory, rewritten for every case.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("liboom_fuzzed.so", 0)), path_("/proc/self/fd/" + std::to_string(descriptor_)) {}
  ~MemoryFile() { close(descriptor_); }
  const std::string& write(const std::string& bytes) {
    if (ftruncate(descriptor_, 0) != 0 || pwrite(descriptor_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
      throw std::runtime_error("memory file");
    }
    return path_;
  }

 private:
  const int descriptor_;
  const std::string path_;
};

struct Tally {
  int accepted = 0;
  int refused = 0;
};

void inspect_one(const std::string& path, Tally& tally) {
  try {
    inspect_plugin_file(path);
    ++tally.accepted;
  } catch (const FileError&) {
    ++tally.refused;
  }
}

std::string sample() {
  std::ifstream file(OOM_SAMPLE_PLAIN, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

uint64_t section_offset(const std::string& bytes, uint32_t type, uint64_t& length) {
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  for (int i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, bytes.data() + header.e_shoff + static_cast<uint64_t>(i) * sizeof section, sizeof section);
    if (section.sh_type != type) continue;
    length = section.sh_size;
    return section.sh_offset;
  }
  ADD_FAILURE() << "no section of type " << type;
  length = 1;
  return 0;
}

TEST(InspectFuzz, SurvivesMutatedBytes) {
  const std::string whole = sample();
  Elf64_Ehdr header;
  std::memcpy(&header, whole.data(), sizeof header);
  struct Range {
    uint64_t begin, length;
  };
  // Most of a library is code, which the reader never looks at: aim at what it does.
  std::array<Range, 6> aims{{{0, whole.size()},
                             {0, sizeof(Elf64_Ehdr)},
                             {header.e_phoff, header.e_phnum * sizeof(Elf64_Phdr)},
                             {header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr)},
                             {},
                             {}}};
  aims[4].begin = section_offset(whole, SHT_DYNSYM, aims[4].length);
  aims[5].begin = section_offset(whole, SHT_DYNAMIC, aims[5].length);
  constexpr std::array<unsigned char, 6> kEdges{0x00, 0x01, 0x7f, 0x80, 0xfe, 0xff};

  std::mt19937_64 random(20240731);
  MemoryFile file;
  Tally tally;
  for (int round = 0; round < 30000; ++round) {
    std::string bytes = whole;
    const Range& aim = aims[random() % aims.size()];
    const int changes = 1 + static_cast<int>(random() % 6);
    for (int i = 0; i < changes; ++i) {
      const uint64_t at = aim.begin + random() % aim.length;
      bytes[at] = static_cast<char>(random() % 2 == 0 ? kEdges[random() % kEdges.size()] : random());
    }
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    inspect_one(file.write(bytes), tally);
  }
  EXPECT_GT(tally.accepted, 100);
  EXPECT_GT(tally.refused, 1000);
}

TEST(InspectFuzz, SurvivesNoiseBehindAnElfHeader) {
  const std::string whole = sample();
  std::mt19937_64 random(7);
  MemoryFile file;
  Tally tally;
  for (int round = 0; round < 500; ++round) {
    std::string bytes = whole.substr(0, sizeof(Elf64_Ehdr));
    bytes.resize(sizeof(Elf64_Ehdr) + random() % 4096);
    for (size_t at = sizeof(Elf64_Ehdr); at < bytes.size(); ++at) bytes[at] = static_cast<char>(random());
    inspect_one(file.write(bytes), tally);
  }
  EXPECT_EQ(tally.accepted, 0);
}

}  // namespace
}  // namespace oom::plugin
