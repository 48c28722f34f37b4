#include "exchange_layout.h"

#include <algorithm>

namespace oom::ep {

int64_t ExchangeShape::chunk_size(int chunk) const { return std::min(chunk_tokens, tokens - chunk_begin(chunk)); }

int64_t ExchangeShape::worst_rows_of(int64_t some_tokens) const { return ranks * some_tokens * std::min(top_k, owned_experts()); }

int64_t ExchangeShape::expected_rows(int chunk, int round) const { return std::clamp<int64_t>(chunk_size(chunk) * top_k - round * receive_rows, 0, receive_rows); }

int64_t ExchangeShape::kept_rows(int chunk, int round) const {
  return std::clamp<int64_t>(std::min(retain_rows, worst_rows_of(chunk_size(chunk))) - round * receive_rows, 0, receive_rows);
}

std::vector<ChunkRun> runs_of_chunks(int chunks, bool one_by_one) {
  constexpr int kAlone = 4;  // at either end
  std::vector<ChunkRun> runs, last;
  int begin = 0, end = chunks;
  for (int turn = 0, count = 1; begin < end; ++turn) {
    if (turn >= kAlone && !one_by_one) count *= 2;
    runs.push_back({begin, std::min(count, end - begin)});
    begin += runs.back().count;
    if (begin == end) break;
    last.push_back({end - std::min(count, end - begin), std::min(count, end - begin)});
    end = last.back().first;
  }
  runs.insert(runs.end(), last.rbegin(), last.rend());
  return runs;
}

void count_rows(std::span<const int32_t> by_expert, std::span<int64_t> by_owner) {
  const size_t owned = by_expert.size() / by_owner.size();
  for (size_t owner = 0; owner < by_owner.size(); ++owner) {
    by_owner[owner] = 0;
    for (const int32_t rows : by_expert.subspan(owner * owned, owned)) by_owner[owner] += rows;
  }
}

Parcel parcel(const ExchangeShape& shape, RowCounts counts, int source, int owner, int round) {
  int64_t sorted = 0;  // where the owner's rows begin at the source
  for (int other = 0; other < owner; ++other) sorted += counts[source * shape.ranks + other];
  int64_t queued = 0;  // where the source's rows begin in the owner's queue
  for (int other = 0; other < source; ++other) queued += counts[other * shape.ranks + owner];
  const int64_t open = round * shape.receive_rows;
  const int64_t begin = std::max(queued, open);
  const int64_t end = std::min(queued + counts[source * shape.ranks + owner], open + shape.receive_rows);
  if (begin >= end) return {};
  return {.from = sorted + begin - queued, .at = begin - open, .rows = end - begin};
}

int64_t rows_received(const ExchangeShape& shape, RowCounts counts, int owner, int round) {
  int64_t queue = 0;
  for (int source = 0; source < shape.ranks; ++source) queue += counts[source * shape.ranks + owner];
  return std::clamp<int64_t>(queue - round * shape.receive_rows, 0, shape.receive_rows);
}

bool is_kept(const ExchangeShape& shape, RowCounts counts, int owner, int chunk, int round) {
  return rows_received(shape, counts, owner, round) <= shape.kept_rows(chunk, round);
}

std::string possible_ranks(int64_t experts, int most) {
  std::string list;
  for (int ranks = 1; ranks <= most; ++ranks) {
    if (experts % ranks == 0) list += (list.empty() ? "" : ", ") + std::to_string(ranks);
  }
  return list;
}

}  // namespace oom::ep
