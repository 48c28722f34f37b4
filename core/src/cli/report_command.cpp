#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/command_line.h"
#include "observe/report_data.h"
#include "observe/report_page.h"
#include "oom/log.h"

namespace oom::cli {

int run_report(const CommandLine& line) {
  const std::filesystem::path folder = line.path;
  const nlohmann::ordered_json data = observe::report_data(folder);
  for (const nlohmann::ordered_json& note : data.at("notes")) log_warn("report: ", note.get<std::string>());
  const std::filesystem::path page = line.option("out").value_or((folder / "report.html").string());
  base::replace_text_file(page, observe::report_page(data));
  std::cout << page.string() << "\n";
  return 0;
}

}  // namespace oom::cli
