#include "data/utf8.h"

#include <gtest/gtest.h>

#include <string_view>

namespace oom::data {
namespace {

std::optional<int64_t> first_bad(std::string_view text, size_t piece) {
  Utf8Checker checker;
  for (size_t at = 0; at < text.size(); at += piece) {
    const auto part = text.substr(at, piece);
    if (const auto bad = checker.feed(std::as_bytes(std::span(part)))) return bad;
  }
  return checker.finish();
}

TEST(Utf8, AcceptsWhatTheStandardAllowsInPiecesOfAnySize) {
  const std::string_view text = "a\xC3\xA9\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xF0\x90\x80\x80\xF4\x8F\xBF\xBFz";
  for (size_t piece = 1; piece <= text.size(); ++piece) EXPECT_EQ(first_bad(text, piece), std::nullopt) << piece;
  EXPECT_EQ(first_bad("", 1), std::nullopt);
}

TEST(Utf8, NamesTheOffsetOfTheFirstBadCharacter) {
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{64}}) {
    EXPECT_EQ(first_bad("ab\xFFxyz", piece), 2);
    EXPECT_EQ(first_bad("ab\x80xyz", piece), 2) << "continuation without a start";
    EXPECT_EQ(first_bad("\xC0\x80", piece), 0) << "overlong, two bytes";
    EXPECT_EQ(first_bad("a\xE0\x9F\xBF", piece), 1) << "overlong, three bytes";
    EXPECT_EQ(first_bad("a\xF0\x8F\xBF\xBF", piece), 1) << "overlong, four bytes";
    EXPECT_EQ(first_bad("a\xED\xA0\x80", piece), 1) << "surrogate";
    EXPECT_EQ(first_bad("\xF4\x90\x80\x80", piece), 0) << "above U+10FFFF";
    EXPECT_EQ(first_bad("abc\xE2\x82", piece), 3) << "cut short";
    EXPECT_EQ(first_bad("abc\xE2\x82z", piece), 3) << "interrupted";
  }
}

}  // namespace
}  // namespace oom::data
