#include "config/toml_values.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "oom/error.h"

namespace oom::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const FileError& error) {
    return error.what();
  }
  return "(nothing)";
}
std::string refusal_of(const std::string& text) {
  return refusal([&] { parse_toml(text, "a.toml"); });
}

TEST(TomlReader, KeepsOrderPositionsAndTypes) {
  const TomlValue root = parse_toml("zeta = 1\nalpha = [0.5, 2]\n[table]\n  key = 'text'\n  flag = true\n", "a.toml");
  ASSERT_EQ(root.as_table().size(), 3u);
  EXPECT_EQ(root.as_table()[0].key, "zeta");
  EXPECT_EQ(root.as_table()[1].key, "alpha");
  EXPECT_EQ(root.as_table()[1].position.text(), "a.toml:2:1");
  EXPECT_THAT(root.get_numbers("alpha"), ElementsAre(0.5, 2.0));
  EXPECT_EQ(root.get_table("table").get("key").position().text(), "a.toml:4:9");
  EXPECT_TRUE(root.get_table("table").get_bool("flag"));
}

TEST(TomlReader, GettersNamePlaceKeyAndValue) {
  const TomlValue root = parse_toml("[layout]\nranks = \"two\"\nlayers = [1, 2.5]\ncost = inf\n", "plan.toml");
  const TomlValue& layout = root.get_table("layout");
  EXPECT_EQ(refusal([&] { layout.get_integer("ranks"); }), "plan.toml:2:9: ranks: must be an integer; got \"two\"");
  EXPECT_EQ(refusal([&] { layout.get_integers("layers"); }), "plan.toml:3:14: layers: must be a list of integers; got 2.5");
  EXPECT_EQ(refusal([&] { layout.get_number("cost"); }), "plan.toml:4:8: cost: must be a finite number; got inf");
  EXPECT_EQ(refusal([&] { layout.get_text("name"); }), "plan.toml:1:1: name: missing");
}

TEST(TomlReader, RefusesWhatIsNoTomlWithItsPlace) {
  EXPECT_THAT(refusal_of("a = 1\nb = \n"), StartsWith("a.toml:2:5: not valid TOML: "));
  EXPECT_THAT(refusal_of("a = 1\na = 2\n"), StartsWith("a.toml:2:"));
  EXPECT_THAT(refusal_of("[t]\nx = 1\n[t]\n"), StartsWith("a.toml:3:"));
  EXPECT_THAT(refusal_of("a = 99999999999999999999\n"), StartsWith("a.toml:1:"));
  EXPECT_THAT(refusal_of("a = 1\nb = \"\xff\xfe\"\n"), StartsWith("a.toml:2:"));
  EXPECT_THAT(refusal_of("a = 1\nb = 2026-01-02\n"), HasSubstr("a.toml:2:5: dates and times are not used here"));
  EXPECT_THAT(refusal_of(std::string("a = \"\0\"", 7)), StartsWith("a.toml:1:"));
}

// toml++ 3.3 asserts here, found by ConfigFuzz: the process must not end.
TEST(TomlReader, RefusesHeadersThatBeginWithNoKey) {
  for (const char* header : {"[=]", "[[=]]", "[ =x", "[[,", "[{}]"}) {
    EXPECT_THAT(refusal_of(std::string("a = 1\n\n") + header + "\nb = 2\n"), StartsWith("a.toml:3:")) << header;
  }
}

// toml++ 3.3 calls these characters unreachable, found by ConfigFuzz under the undefined-behaviour sanitizer.
TEST(TomlReader, RefusesOtherThanAsciiOutsideQuotes) {
  for (const char* line : {"\u00e9 = 1", "a = \u00e9", "a = 1 \u0400", "a\u00a1 = 1", "a = \"\"\"x\"\"\" \u00e9", "[\u2d00]", "a = \uf900", "a = \ufb01"}) {
    EXPECT_THAT(refusal_of(std::string("x = 1\n") + line + "\n"), StartsWith("a.toml:2:")) << line;
  }
  EXPECT_EQ(parse_toml("\"\u00e9\" = '\u0416'  # \u00e9\n", "a.toml").get_text("\u00e9"), "\u0416");
}

TEST(TomlReader, BoundsNesting) {
  const auto repeated = [](const std::string& part, size_t times) {
    std::string text;
    for (size_t i = 0; i < times; ++i) text += part;
    return text;
  };
  EXPECT_THAT(refusal_of("a = " + repeated("[", 200000)), StartsWith("a.toml:1:"));
  EXPECT_THAT(refusal_of("a = " + repeated("{a=", 200000)), StartsWith("a.toml:1:"));
  EXPECT_THAT(refusal_of("\na" + repeated(".a", 200000) + " = 1"), StartsWith("a.toml:2:"));
  EXPECT_THAT(refusal_of("[a" + repeated(" . \"a\"", 200000) + "]"), HasSubstr("a key of more than 16 parts"));
  EXPECT_THAT(refusal_of("x = [" + repeated("{a.b.c.d.e.f.g.h=[", 200000)), StartsWith("a.toml:1:"));
  EXPECT_EQ(refusal_of("a" + repeated(".a", 15) + " = [1.5, 2.5]  # a.b.c" + repeated(".d", 40)), "(nothing)");
  EXPECT_EQ(refusal_of("a = '" + repeated("x.", 100) + "'\nb = \"\"\"" + repeated("\n x.y\\\"", 100) + "\"\"\""), "(nothing)");
  EXPECT_THAT(refusal_of(repeated("#", (16 << 20) + 1)), HasSubstr("16 MiB"));
}

TEST(TomlReader, RefusesWhatIsNoReadableFile) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "toml_values_test";
  std::filesystem::create_directories(folder);
  const std::string missing = (folder / "missing.toml").string();
  EXPECT_EQ(refusal([&] { parse_toml_file(missing); }), missing + ":1:1: cannot be read: No such file or directory");
  EXPECT_THAT(refusal([&] { parse_toml_file(folder.string()); }), HasSubstr("it is a directory"));
  const std::string pipe = (folder / "pipe").string();
  ASSERT_TRUE(mkfifo(pipe.c_str(), 0600) == 0 || errno == EEXIST);
  EXPECT_THAT(refusal([&] { parse_toml_file(pipe); }), HasSubstr("it is no regular file"));
  const std::string closed = (folder / "closed.toml").string();
  std::ofstream(closed) << "a = 1\n";
  ASSERT_EQ(chmod(closed.c_str(), 0), 0);
  if (geteuid() != 0) {
    EXPECT_THAT(refusal([&] { parse_toml_file(closed); }), HasSubstr("Permission denied"));
  }
  std::filesystem::remove_all(folder);
}

TEST(TomlWriter, WritesWhatReadsBackEqual) {
  TomlValue root;
  root.set("version", 1);
  root.set("name", "say \"hi\"\n\ttab \\ \x01 \u00e9");
  root.set("flag", true);
  root.set("numbers", std::vector<double>{0.1, 1.0, 1e-300, 1e20, -0.0, std::numeric_limits<double>::denorm_min()});
  TomlValue::Array many;
  for (int i = 0; i < 200; ++i) many.push_back(i);
  root.set("many", many);
  TomlValue& layout = root.table("layout");
  layout.set("odd key.", 5);
  layout.table("inner").set("x", std::vector<std::string>{"a", "b"});
  TomlValue first, second;
  first.set("layer", 0);
  second.set("layer", 1);
  second.table("sub").set("y", 2.5);
  layout.set("layers", TomlValue::Array{first, second});
  layout.set("mixed", TomlValue::Array{first, 3});
  root.set("after", "scalars come before tables");
  const std::string text = write_toml(root);
  EXPECT_EQ(parse_toml(text, "written"), root) << text;
  EXPECT_THAT(text, HasSubstr("[[layout.layers]]\nlayer = 1\n\n[layout.layers.sub]\ny = 2.5\n"));
  EXPECT_THAT(text, HasSubstr("\"odd key.\" = 5\n"));
  EXPECT_EQ(write_toml_value(1e-5), "1e-05");
  EXPECT_EQ(write_toml_value(600.0), "600.0");
  size_t longest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  EXPECT_LE(longest, 122u);
}

TEST(TomlValue, IsWrittenAndComparedByContent) {
  TomlValue left, right;
  left.set("a", 1);
  left.set("b", 2);
  right.set("b", 2);
  EXPECT_FALSE(left == right);
  right.set("a", 1);
  EXPECT_TRUE(left == right);
  right.set("a", 1.0);
  EXPECT_FALSE(left == right);
  EXPECT_EQ(TomlValue(std::string(100, 'x')).text(10), "\"xxxxxxxxx...");
  EXPECT_THROW(left.as_text(), Error);
}

}  // namespace
}  // namespace oom::config
