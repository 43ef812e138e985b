// The bytes of a pool in far memory: superblock, membership, catalogue, chunks.
// docs/formats/pool.md draws them. Every word named "word" is changed by fabric atomics only, once
// the thing that it is part of has been published; epoch_word, heartbeat_word, nodes_word,
// ledger_word and answered_word of a member, which one compute node alone changes, are written.
//
// Every memory node starts with a superblock, then comes a table of its chunks' states, then the
// chunks. Node 0 holds the tables of the whole pool behind its superblock: the global epoch, the
// membership slots and the catalogue.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fabric/verbs.h"
#include "pool/memory/block.h"

namespace pando::pool {

using fabric::Address;
using fabric::NodeId;

inline constexpr std::uint64_t kPoolMagic = 0x31'4f'44'4e'41'50'00'89;  // "\x89\0PANDO1"
inline constexpr std::uint32_t kPoolFormat = 5;
inline constexpr std::uint64_t kChunkBytes = 256 << 10;
inline constexpr std::size_t kMaxComputeNodes = 256;
inline constexpr std::size_t kMaxIndexes = 128;
inline constexpr std::size_t kMaxAddedNodes = 255;  // after the pool was formatted
inline constexpr std::size_t kMaxIndexName = 128;
inline constexpr std::size_t kMaxIndexOptions = 512;

// Superblock.state: who is formatting, then kFormatted for good.
inline constexpr std::uint64_t kFormatted = ~std::uint64_t{0};

struct Superblock {
  std::uint64_t state_word;  // 0 fresh memory; a ClientId while that client formats; kFormatted
  std::uint64_t magic;
  std::uint32_t format;
  std::uint32_t node_id;
  std::uint32_t node_count;  // when the pool was formatted
  std::uint32_t reserved0;
  std::uint64_t pool_id;  // random: nodes of one pool agree
  std::uint64_t size;
  std::uint64_t first_chunk;      // offset
  std::uint64_t next_chunk_word;  // offset of the first chunk never handed out
  // Free blocks given back for all to use: one stack a kind and size class. A word is
  // {tag:22, sealed:1, place:41}; place 0 is empty. See shared_stack.h.
  std::uint64_t free_stack_words[kBlockKinds][kSizeClasses];
  // What the recycler has taken off these stacks: place of the first magazine; 0 is none. See
  // recycler.h.
  std::uint64_t taken_words[kBlockKinds][kSizeClasses];
  // On node 0: nodes that were added since, each as its id + 1, in the order in which they were; 0
  // is the end. See memory_nodes.h.
  std::uint64_t added_words[kMaxAddedNodes];
};
inline constexpr std::uint64_t kSuperblockBytes = 8192;
static_assert(sizeof(Superblock) <= kSuperblockBytes);
static_assert(offsetof(Superblock, free_stack_words) == fabric::kLineBytes);

// A compute node's place in the pool: one line each, on node 0.
struct MemberSlot {
  std::uint64_t owner_word;  // {client:32, generation:24, state:8}; see membership.h
  std::uint64_t epoch_word;  // every reader of this compute node pinned this epoch or a later one
  std::uint64_t heartbeat_word;  // moves while the compute node lives
  std::uint64_t nodes_word;     // how many of the added memory nodes it knows, or a predecessor did
  std::uint64_t ledger_word;    // address of the first page of the slot's ledger; see ledger.h
  std::uint64_t answered_word;  // the last call that it has answered, or a predecessor did
  std::uint64_t reserved[2];
};
static_assert(sizeof(MemberSlot) == fabric::kLineBytes);

// An index by name: 16 lines each, on node 0. See catalogue.h.
struct CatalogueEntry {
  std::uint64_t state_word;  // {index id:32, state:8}; see catalogue.h
  std::uint64_t root_word;   // the index's own: what it starts from
  std::uint64_t
      users_words[kMaxComputeNodes / 64];  // bit: the compute node in that slot has it open
  std::uint32_t format_version;
  std::uint32_t name_length;
  std::uint32_t options_length;
  std::uint32_t checksum;  // over index id, the three fields above, seed, name and options
  std::uint64_t seed;      // random, for the index's hashes
  char name[kMaxIndexName];
  char options[kMaxIndexOptions];  // IndexOptions::to_string()
  std::uint64_t index_words[16];   // for the index's own use
  std::uint64_t maker_word;        // OwnerId of who creates or drops it now; see catalogue.h
  std::uint64_t reserved[22];
};
static_assert(sizeof(CatalogueEntry) == 1024);

struct PoolTables {
  std::uint64_t epoch_word;
  std::uint64_t next_index_id_word;
  std::uint64_t catalogue_lock_word;  // OwnerId of the holder; 0 is free
  std::uint64_t members_word;         // slots from here on have never been used
  std::uint64_t wanted_epoch;         // beat often until the global epoch is there: a hint, written
  std::uint64_t call_word;            // {number:56, what:8}: what all are asked to do; recycler.h
  std::uint64_t recycler_word;        // {owner:32, edition:24, phase:8}; recycler.h
  std::uint64_t reserved;
  MemberSlot members[kMaxComputeNodes];
  CatalogueEntry catalogue[kMaxIndexes];
};

inline constexpr std::uint64_t kTablesOffset = kSuperblockBytes;
inline constexpr std::uint64_t kTablesEnd = kTablesOffset + sizeof(PoolTables);

// ---- Chunk states: two bits a chunk, 32 to a word, behind superblock and tables.

enum class ChunkState : std::uint8_t {
  kPlain = 0,    // never handed out, or somebody's
  kFree = 1,     // nobody's, and zero
  kTurning = 2,  // the recycler's: free, not yet zero
  kShort = 3,    // somebody's: the first of a run that is shorter than its class usually has
};
inline constexpr std::size_t kChunksPerWord = 32;

constexpr std::uint64_t chunk_states_at(std::size_t node) {
  return node == 0 ? (kTablesEnd + fabric::kLineBytes - 1) / fabric::kLineBytes * fabric::kLineBytes
                   : kSuperblockBytes;
}
// Of a node of so many bytes: more than its chunks need, by a little.
constexpr std::size_t chunk_state_words(std::uint64_t node_bytes) {
  return (node_bytes / kChunkBytes + kChunksPerWord - 1) / kChunksPerWord;
}
constexpr ChunkState chunk_state(std::uint64_t word, std::size_t chunk) {
  return static_cast<ChunkState>(word >> chunk % kChunksPerWord * 2 & 3);
}
constexpr std::uint64_t with_chunk_state(std::uint64_t word, std::size_t chunk, ChunkState state) {
  const unsigned shift = static_cast<unsigned>(chunk % kChunksPerWord * 2);
  return (word & ~(std::uint64_t{3} << shift)) | (static_cast<std::uint64_t>(state) << shift);
}

inline constexpr Address superblock_field(NodeId node, std::size_t field) {
  return Address(node, field);
}
inline constexpr Address tables_field(std::size_t field) {
  return Address(0, kTablesOffset + field);
}
inline constexpr Address chunk_state_address(NodeId node, std::size_t chunk) {
  return Address(node, chunk_states_at(node) + chunk / kChunksPerWord * 8);
}
inline constexpr Address member_address(std::size_t slot) {
  return tables_field(offsetof(PoolTables, members) + slot * sizeof(MemberSlot));
}
inline constexpr Address catalogue_address(std::size_t entry) {
  return tables_field(offsetof(PoolTables, catalogue) + entry * sizeof(CatalogueEntry));
}

}  // namespace pando::pool
