#include "plugin/plugin_inspect.h"

#include <fcntl.h>
#include <gelf.h>
#include <libelf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "oom/error.h"
#include "oom/version.h"

namespace oom::plugin {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kEntryPrefix = "oom_plugin_v";

#if defined(__x86_64__)
constexpr GElf_Half kOurMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr GElf_Half kOurMachine = EM_AARCH64;
#else
#error "plugin_inspect: add the ELF machine number of this architecture"
#endif

class ElfFile {
 public:
  explicit ElfFile(const fs::path& path) : path_(path) {
    elf_version(EV_CURRENT);
    descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) fail("cannot be read: ", std::strerror(errno));
    struct stat status {};
    if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) fail("is not a regular file");
    size_bytes_ = static_cast<uint64_t>(status.st_size);
    // Reading, not mapping: a file that shrinks meanwhile gives an error and no signal.
    elf_ = elf_begin(descriptor_, ELF_C_READ, nullptr);
    if (elf_ == nullptr || elf_kind(elf_) != ELF_K_ELF) fail("is not a shared library (no ELF header)");
  }
  ~ElfFile() { close_all(); }
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;

  Elf* get() const { return elf_; }
  uint64_t size_bytes() const { return size_bytes_; }

  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) {
    close_all();
    throw FileError(cat("plugin file ", path_.string(), ": ", parts...));
  }
  [[noreturn]] void fail_damaged(std::string_view what) {
    const char* reason = elf_errmsg(-1);
    fail("is damaged: ", what, reason != nullptr ? cat(" (", reason, ")") : std::string(), ". Build or copy it again.");
  }

 private:
  void close_all() {
    if (elf_ != nullptr) elf_end(elf_);
    if (descriptor_ >= 0) close(descriptor_);
    elf_ = nullptr;
    descriptor_ = -1;
  }

  const fs::path path_;
  int descriptor_ = -1;
  Elf* elf_ = nullptr;
  uint64_t size_bytes_ = 0;
};

void check_header(ElfFile& file) {
  GElf_Ehdr header;
  if (gelf_getehdr(file.get(), &header) == nullptr) file.fail_damaged("its ELF header cannot be read");
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_machine != kOurMachine) {
    file.fail("was built for another architecture (ELF machine ", header.e_machine, "; this engine: ", kOurMachine, ")");
  }
  if (header.e_type != ET_DYN) file.fail("is not a shared library (ELF type ", header.e_type, ")");
}

/// The loader maps segments as the program headers say: one that reaches past the end of the file would kill the process at first touch.
void check_segments(ElfFile& file) {
  size_t count = 0;
  if (elf_getphdrnum(file.get(), &count) != 0) file.fail_damaged("its program headers cannot be read");
  bool loadable = false;
  for (size_t i = 0; i < count; ++i) {
    GElf_Phdr segment;
    if (gelf_getphdr(file.get(), static_cast<int>(i), &segment) == nullptr) file.fail_damaged("its program headers cannot be read");
    if (segment.p_type != PT_LOAD && segment.p_type != PT_DYNAMIC) continue;
    loadable = loadable || segment.p_type == PT_LOAD;
    if (segment.p_offset > file.size_bytes() || segment.p_filesz > file.size_bytes() - segment.p_offset) {
      file.fail("is truncated: segment ", i, " ends at byte ", cat(segment.p_offset, " + ", segment.p_filesz), " of ", file.size_bytes(),
                ". Build or copy it again.");
    }
  }
  if (!loadable) file.fail_damaged("it has no loadable segment");
}

/// Adds N when `name` is oom_plugin_vN.
void note_entry(std::string_view name, std::vector<uint32_t>& abis) {
  if (!name.starts_with(kEntryPrefix)) return;
  const std::string_view digits = name.substr(kEntryPrefix.size());
  uint32_t abi = 0;
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), abi);
  if (error == std::errc() && rest == digits.data() + digits.size()) abis.push_back(abi);
}

void read_symbols(ElfFile& file, Elf_Scn* section, const GElf_Shdr& header, PluginFacts& facts) {
  if (header.sh_entsize != sizeof(Elf64_Sym)) file.fail_damaged("its dynamic symbols have an odd size");
  Elf_Data* data = elf_getdata(section, nullptr);
  if (data == nullptr) file.fail_damaged("its dynamic symbols cannot be read");
  const size_t count = data->d_size / sizeof(Elf64_Sym);
  for (size_t i = 1; i < count; ++i) {
    GElf_Sym symbol;
    if (gelf_getsym(data, static_cast<int>(i), &symbol) == nullptr) file.fail_damaged("a dynamic symbol cannot be read");
    if (symbol.st_shndx == SHN_UNDEF || GELF_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
    const char* name = elf_strptr(file.get(), header.sh_link, symbol.st_name);
    if (name == nullptr) file.fail_damaged("the name of a dynamic symbol lies outside its string table");
    note_entry(name, facts.abis);
  }
}

void read_dynamic(ElfFile& file, Elf_Scn* section, const GElf_Shdr& header, PluginFacts& facts) {
  Elf_Data* data = elf_getdata(section, nullptr);
  if (data == nullptr) file.fail_damaged("its dynamic section cannot be read");
  const size_t count = data->d_size / sizeof(Elf64_Dyn);
  for (size_t i = 0; i < count; ++i) {
    GElf_Dyn entry;
    if (gelf_getdyn(data, static_cast<int>(i), &entry) == nullptr) file.fail_damaged("an entry of its dynamic section cannot be read");
    if (entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_NEEDED) {
      const char* name = elf_strptr(file.get(), header.sh_link, entry.d_un.d_val);
      if (name == nullptr) file.fail_damaged("the name of a needed library lies outside its string table");
      facts.needed.emplace_back(name);
    }
    if (entry.d_tag == DT_INIT_ARRAYSZ) {
      const uint64_t functions = std::min<uint64_t>(entry.d_un.d_val, file.size_bytes()) / sizeof(Elf64_Addr);
      facts.static_constructors = static_cast<uint32_t>(functions > 0 ? functions - 1 : 0);
    }
  }
}

}  // namespace

PluginFacts inspect_plugin_file(const fs::path& path) {
  ElfFile file(path);
  check_header(file);
  check_segments(file);
  PluginFacts facts;
  bool has_symbols = false;
  for (Elf_Scn* section = elf_nextscn(file.get(), nullptr); section != nullptr; section = elf_nextscn(file.get(), section)) {
    GElf_Shdr header;
    if (gelf_getshdr(section, &header) == nullptr) file.fail_damaged("a section header cannot be read");
    if (header.sh_type == SHT_DYNSYM) {
      if (has_symbols) file.fail_damaged("it has more than one table of dynamic symbols");
      has_symbols = true;
      read_symbols(file, section, header, facts);
    } else if (header.sh_type == SHT_DYNAMIC) {
      read_dynamic(file, section, header, facts);
    }
  }
  if (!has_symbols) file.fail_damaged("it has no table of dynamic symbols");
  std::sort(facts.abis.begin(), facts.abis.end());
  facts.abis.erase(std::unique(facts.abis.begin(), facts.abis.end()), facts.abis.end());
  return facts;
}

void require_our_abi(const fs::path& path, const PluginFacts& facts) {
  if (std::binary_search(facts.abis.begin(), facts.abis.end(), uint32_t{OOM_ABI})) return;
  if (facts.abis.empty()) {
    throw FileError(cat("plugin file ", path.string(), ": is not a plugin: it exports no ", kEntryPrefix, OOM_ABI,
                        ". A plugin's source ends with OOM_PLUGIN(...) and is built by oom_add_plugin."));
  }
  const uint32_t theirs = facts.abis.back();
  throw FileError(cat("plugin file ", path.string(), ": was built for ", theirs < OOM_ABI ? "an older" : "a newer",
                      " plugin interface: plugin ", theirs, ", engine ", OOM_ABI, ". ",
                      theirs < OOM_ABI ? "Rebuild it against SDK " OOM_SDK_VERSION "." : "Update the engine, or rebuild it against SDK " OOM_SDK_VERSION "."));
}

}  // namespace oom::plugin
