#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <system_error>
#include <utility>

#include "oom/error.h"

namespace oom::base {
namespace {

constexpr int64_t kWriteBackBytes = int64_t{32} << 20;
constexpr size_t kLargestCallBytes = size_t{1} << 30;  // one system call moves less than 2 GiB

bool is_lack_of_room(int error_number) { return error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG; }

[[noreturn]] void raise(const std::filesystem::path& path, const std::string& what, int error_number) {
  throw FileError(cat(path.string(), ": ", what, ": ", system_error_text(error_number),
                      is_lack_of_room(error_number) ? ". Free room on the disk (or raise the quota or the limit of file sizes), or write elsewhere" : ""));
}

int open_checked(const std::filesystem::path& path, struct stat& status) {
  // Without O_NONBLOCK opening a pipe would wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) raise(path, "cannot be opened for reading", errno);
  if (::fstat(descriptor, &status) != 0) {
    const int error_number = errno;
    ::close(descriptor);
    raise(path, "cannot be examined", error_number);
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw FileError(cat(path.string(), ": is not a regular file"));
  }
  return descriptor;
}

}  // namespace

std::string system_error_text(int error_number) {
  return cat(std::system_category().message(error_number), " (errno ", error_number, ")");
}

File::File(std::filesystem::path path, int descriptor, int64_t size_bytes)
    : path_(std::move(path)), descriptor_(descriptor), size_bytes_(size_bytes) {}

File File::open(const std::filesystem::path& path) {
  struct stat status {};
  const int descriptor = open_checked(path, status);
  return File(path, descriptor, status.st_size);
}

File File::create(const std::filesystem::path& path) { return open_for_appending(path, O_EXCL); }

File File::overwrite(const std::filesystem::path& path) { return open_for_appending(path, O_TRUNC); }

File File::extend(const std::filesystem::path& path) { return open_for_appending(path, O_APPEND); }

File File::open_for_appending(const std::filesystem::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
  if (descriptor < 0) raise(path, "cannot be created", errno);
  const off_t end = ::lseek(descriptor, 0, SEEK_END);
  return File(path, descriptor, std::max<int64_t>(end, 0));  // a pipe has no end
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(other.size_bytes_),
      started_bytes_(other.started_bytes_),
      written_bytes_(other.written_bytes_) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (descriptor_ >= 0) ::close(descriptor_);
    path_ = std::move(other.path_);
    descriptor_ = std::exchange(other.descriptor_, -1);
    size_bytes_ = other.size_bytes_;
    started_bytes_ = other.started_bytes_;
    written_bytes_ = other.written_bytes_;
  }
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void File::read_at(int64_t offset, std::span<std::byte> out) const {
  const int64_t wanted = static_cast<int64_t>(out.size());
  if (offset < 0 || offset > size_bytes_ || wanted > size_bytes_ - offset)
    throw FileError(cat(path_.string(), ": ", wanted, " bytes wanted at byte ", offset, " of a file of ", size_bytes_, " bytes"));
  size_t done = 0;
  while (done < out.size()) {
    const size_t ask = std::min(out.size() - done, kLargestCallBytes);
    const ssize_t got = ::pread(descriptor_, out.data() + done, ask, offset + static_cast<int64_t>(done));
    if (got < 0) {
      if (errno == EINTR) continue;
      raise(path_, cat("reading ", wanted, " bytes at byte ", offset, " failed"), errno);
    }
    if (got == 0)
      throw FileError(cat(path_.string(), ": has become shorter while in use: it ends at byte ", offset + static_cast<int64_t>(done),
                          ", and had ", size_bytes_, " bytes when it was opened"));
    done += static_cast<size_t>(got);
  }
}

void File::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t ask = std::min(bytes.size(), static_cast<size_t>(kWriteBackBytes));
    const ssize_t got = ::write(descriptor_, bytes.data(), ask);
    if (got < 0) {
      if (errno == EINTR) continue;
      raise(path_, cat("writing ", bytes.size(), " bytes at byte ", size_bytes_, " failed"), errno);
    }
    size_bytes_ += got;
    bytes = bytes.subspan(static_cast<size_t>(got));
    if (size_bytes_ - started_bytes_ >= kWriteBackBytes) write_back();
  }
}

// Both calls are hints to the kernel; sync() is what reports a failed write.
void File::write_back() {
  ::sync_file_range(descriptor_, started_bytes_, size_bytes_ - started_bytes_, SYNC_FILE_RANGE_WRITE);
  if (started_bytes_ > written_bytes_) {
    ::sync_file_range(descriptor_, written_bytes_, started_bytes_ - written_bytes_,
                      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    drop_cache(written_bytes_, started_bytes_ - written_bytes_);
  }
  written_bytes_ = started_bytes_;
  started_bytes_ = size_bytes_;
}

void File::sync() {
  if (::fsync(descriptor_) != 0) raise(path_, cat("bringing ", size_bytes_, " bytes to the disk failed"), errno);
  drop_cache(0, size_bytes_);
}

void File::drop_cache(int64_t offset, int64_t bytes) const { ::posix_fadvise(descriptor_, offset, bytes, POSIX_FADV_DONTNEED); }

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  struct stat status {};
  const int descriptor = open_checked(path, status);
  if (status.st_size > 0) {
    void* address = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) {
      const int error_number = errno;
      ::close(descriptor);
      raise(path, cat("mapping ", status.st_size, " bytes failed"), error_number);
    }
    bytes_ = {static_cast<const std::byte*>(address), static_cast<size_t>(status.st_size)};
  }
  ::close(descriptor);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

std::filesystem::path expand_home(std::string_view path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return path;
  return path.size() <= 2 ? std::filesystem::path(home) : std::filesystem::path(home) / path.substr(2);
}

std::string read_text_file(const std::filesystem::path& path, int64_t limit_bytes) {
  const File file = File::open(path);
  if (file.size_bytes() > limit_bytes)
    throw FileError(cat(path.string(), ": has ", file.size_bytes(), " bytes, more than the ", limit_bytes, " that such a file may have"));
  std::string text(static_cast<size_t>(file.size_bytes()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  File file = File::create(path);
  file.append(std::as_bytes(std::span(text)));
  file.sync();
}

void replace_text_file(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path beside = path;
  beside += ".new";
  std::error_code error;
  std::filesystem::remove(beside, error);
  write_text_file(beside, text);
  std::filesystem::rename(beside, path, error);
  if (error) throw FileError(cat(path.string(), ": cannot be replaced by ", beside.string(), ": ", error.message()));
}

void overwrite_text_file(const std::filesystem::path& path, std::string_view text) {
  File::overwrite(path).append(std::as_bytes(std::span(text)));
}

void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) raise(folder, "cannot be opened as a folder", errno);
  const int result = ::fsync(descriptor);
  const int error_number = errno;
  ::close(descriptor);
  // Some network file systems cannot sync a folder and answer EINVAL: they give no stronger promise than that.
  if (result != 0 && error_number != EINVAL) raise(folder, "bringing the folder to the disk failed", error_number);
}

int64_t free_disk_bytes(const std::filesystem::path& path) {
  std::filesystem::path place = std::filesystem::absolute(path);
  std::error_code ignored;
  while (!std::filesystem::exists(place, ignored) && place.has_relative_path()) place = place.parent_path();
  struct statvfs status {};
  if (::statvfs(place.c_str(), &status) != 0) raise(place, "free disk space cannot be read", errno);
  int64_t free_bytes = 0;
  if (__builtin_mul_overflow(status.f_bavail, status.f_frsize, &free_bytes)) free_bytes = std::numeric_limits<int64_t>::max();
  return free_bytes;
}

}  // namespace oom::base
