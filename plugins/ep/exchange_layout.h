/// The arithmetic of the token exchange: which rows go where in which round. Pure functions of the plan and of saved counts, so that every rank
/// comes to the same answer without asking another.
///
/// The tokens of a rank are routed in chunks. The rows of a chunk, sorted by expert, lie sorted by owner too, because ranks own contiguous
/// ranges of experts. An owner takes them in rounds of at most `receive_rows`: think of the rows meant for it as one queue, source after source; round
/// k is rows [k receive_rows, (k + 1) receive_rows) of that queue. The number of rounds is fixed by the worst case; rounds without rows do nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace oom::ep {

struct ExchangeShape {
  int ranks = 1;
  int64_t tokens = 0;        ///< of each rank
  int64_t top_k = 0;
  int64_t experts = 0;       ///< of the whole layer; divisible by `ranks`
  int64_t chunk_tokens = 0;  ///< in [1, tokens]
  int64_t receive_rows = 0;  ///< that an owner takes at once, from all sources together; in [1, worst_rows()]
  int64_t retain_rows = 0;   ///< of a chunk's queue, that the owner of a retained layer keeps at most: rounds that end beyond are not kept; in [1, worst_rows()]

  bool alone() const { return ranks == 1; }  ///< nothing is exchanged
  int64_t owned_experts() const { return experts / ranks; }
  int chunks() const { return static_cast<int>((tokens + chunk_tokens - 1) / chunk_tokens); }
  int rounds() const { return static_cast<int>((worst_rows() + receive_rows - 1) / receive_rows); }  ///< of a chunk
  int64_t chunk_begin(int chunk) const { return chunk * chunk_tokens; }
  int64_t chunk_size(int chunk) const;
  int64_t chunk_rows() const { return chunk_tokens * top_k; }  ///< that the largest chunk of one source has
  /// Rows of the largest chunk that meet at one owner when every token of every rank chooses as many of its experts as it can.
  int64_t worst_rows() const { return worst_rows_of(chunk_tokens); }
  int64_t worst_rows_of(int64_t some_tokens) const;
  /// Rows that an owner takes in a round of `chunk` when routing is even.
  int64_t expected_rows(int chunk, int round) const;
  /// Most rows of a round of `chunk` with which a retained layer's owner keeps them. 0: never.
  int64_t kept_rows(int chunk, int round) const;
};

/// Chunks in a row.
struct ChunkRun {
  int first = 0;
  int count = 1;
};
/// All chunks one by one or, for a sketch, those between the ends in runs of alike ones, twice as many each time from either end: what the first wait for and
/// what waits for the last is then as it is, and so is the overlap of neighbours.
std::vector<ChunkRun> runs_of_chunks(int chunks, bool one_by_one);

/// Rows of one chunk from source s to owner o, at [s * ranks + o].
using RowCounts = std::span<const int64_t>;

/// Rows that travel together from a source to an owner in one round, and back.
struct Parcel {
  int64_t from = 0;  ///< first row among the source's sorted rows
  int64_t at = 0;    ///< first row in the owner's receive buffer
  int64_t rows = 0;
};

/// Sums one source's choices by expert over owners: row `source` of RowCounts.
void count_rows(std::span<const int32_t> by_expert, std::span<int64_t> by_owner);
Parcel parcel(const ExchangeShape& shape, RowCounts counts, int source, int owner, int round);
/// Rows in the receive buffer of `owner` in a round.
int64_t rows_received(const ExchangeShape& shape, RowCounts counts, int owner, int round);

/// Whether the owner of a retained layer keeps the rows of a round: every rank knows without asking.
bool is_kept(const ExchangeShape& shape, RowCounts counts, int owner, int chunk, int round);

/// The numbers of ranks that `experts` can be divided among: "1, 2, 4".
std::string possible_ranks(int64_t experts, int most);

}  // namespace oom::ep
