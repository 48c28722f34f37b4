#include "runtime/geometry.h"

#include <map>
#include <set>

#include "base/text.h"
#include "checkpoint/block_checksum.h"

namespace oom::runtime {

std::string geometry_of(const ModelDescription& model) {
  // One layer of each sort; the same sort with other shapes is another one.
  std::vector<std::string> shapes(model.layers.size());
  std::string ends;
  for (const ParameterSpec& parameter : model.parameters) {
    std::string shape = role_name(parameter.role);
    for (const int64_t size : parameter.shape) shape += cat(" ", size);
    (parameter.layer >= 0 ? shapes.at(static_cast<size_t>(parameter.layer)) : ends) += shape + ";";
  }
  std::set<std::string> sorts, names;
  for (size_t layer = 0; layer < shapes.size(); ++layer) {
    const std::string name = cat(model.layers[layer].mixer, "+", model.layers[layer].feed_forward);
    names.insert(name);
    sorts.insert(cat(name, ":", shapes[layer]));
  }
  std::string all = cat(model.family, "|", ends);  // not how positions are stretched: that costs nothing
  for (const std::string& sort : sorts) all += cat("|", sort);
  const std::vector<std::string> listed(names.begin(), names.end());
  std::string experts;
  if (model.routed.experts > 0) experts = cat(", ", model.routed.experts, " experts of ", model.routed.width, ", ", model.routed.top_k, " chosen");
  return cat(model.family, ", hidden ", model.hidden, experts, ", layers ", base::join(listed, " and "), " (", checkpoint::checksum_text(all), ")");
}

}  // namespace oom::runtime
