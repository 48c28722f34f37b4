#include "observe/report_page.h"

#include <nlohmann/json.hpp>

#include "observe_page_files.h"

namespace oom::observe {
namespace {

std::string escaped_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

// JSON inside a script element: without '<' no text of it can end the element or begin a comment.
std::string escaped_json(const nlohmann::ordered_json& data) {
  std::string out;
  for (const char c : data.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)) {
    if (c == '<') out += "\\u003c";
    else out += c;
  }
  return out;
}

}  // namespace

std::string report_page(const nlohmann::ordered_json& data) {
  // Filled from front to back, so that nothing inserted is taken for a mark.
  std::string_view rest = page_files::kHtml;
  std::string page;
  while (true) {
    const size_t mark = rest.find("{{");
    page += rest.substr(0, mark);
    if (mark == std::string_view::npos) return page;
    const size_t end = rest.find("}}", mark);
    const std::string_view name = rest.substr(mark + 2, end - mark - 2);
    rest.remove_prefix(end + 2);
    if (name == "style") page += page_files::kCss;
    if (name == "script") page += page_files::kScript;
    if (name == "data") page += escaped_json(data);
    if (name == "title") page += escaped_html(data.at("title").get<std::string>());
  }
}

}  // namespace oom::observe
