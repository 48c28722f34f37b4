/// Files as the engine reads and writes them: positioned reads, appends that do not fill memory with dirty pages, durable ends.
///
/// Reading goes through the kernel's cache without a mapping: a file that shrinks or a disk that fails is then a FileError and not a
/// signal, and nothing read counts as memory of this process. Every failure is a FileError with path, bytes and the system's text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace oom::base {

/// An open regular file. Reading is const and safe from several threads; appending belongs to one thread.
class File {
 public:
  /// Opens for reading. Folders, pipes and devices are refused.
  static File open(const std::filesystem::path& path);
  /// Makes a file that must not exist yet and opens it for appending.
  static File create(const std::filesystem::path& path);
  /// Makes a file, or empties one that is there, and opens it for appending.
  static File overwrite(const std::filesystem::path& path);
  /// Opens a file for appending after what it holds; made when it is not there.
  static File extend(const std::filesystem::path& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::filesystem::path& path() const { return path_; }
  /// Size when opened, and what has been appended.
  int64_t size_bytes() const { return size_bytes_; }

  /// Fills `out` with the bytes from `offset` on; fewer bytes in the file are an error.
  void read_at(int64_t offset, std::span<std::byte> out) const;
  /// Appends all of `bytes`. Starts write-back as it goes and drops what has been written from the cache, so that saving a terabyte
  /// neither throttles nor evicts the rest of the machine.
  void append(std::span<const std::byte> bytes);
  /// Waits until everything appended is on the disk.
  void sync();
  /// Tells the kernel that the range will not be read again soon.
  void drop_cache(int64_t offset, int64_t bytes) const;

 private:
  File(std::filesystem::path path, int descriptor, int64_t size_bytes);
  static File open_for_appending(const std::filesystem::path& path, int flags);
  void write_back();

  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_bytes_ = 0;
  int64_t started_bytes_ = 0;  // write-back has been started up to here
  int64_t written_bytes_ = 0;  // and has been waited for up to here
};

/// A whole file mapped for reading; for small indexes that are searched at random.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

/// "~" and "~/x" with the home folder that HOME names; any other path, or without HOME, as it is.
std::filesystem::path expand_home(std::string_view path);
/// Returns a file's text; one larger than `limit_bytes` is refused before it is read.
std::string read_text_file(const std::filesystem::path& path, int64_t limit_bytes);
/// Makes a new file with `text` and waits until it is on the disk.
void write_text_file(const std::filesystem::path& path, std::string_view text);
/// Puts `text` in place of what `path` held: a reader, and a crash, find the old text or the new one, never a part.
void replace_text_file(const std::filesystem::path& path, std::string_view text);
/// Makes a file with `text`, or gives one that is there another content: for paths that a user names, /dev/stdout among them.
void overwrite_text_file(const std::filesystem::path& path, std::string_view text);
/// Makes names created, renamed or removed in `folder` durable.
void sync_folder(const std::filesystem::path& folder);
/// Returns the system's text for an errno value.
std::string system_error_text(int error_number);
/// Returns bytes that an unprivileged process may still write where `path` is or would be.
int64_t free_disk_bytes(const std::filesystem::path& path);

}  // namespace oom::base
