// Allocator: far memory for this compute node's indexes.
//
// Memory nodes hand out chunks of kChunkBytes by a word that the taker moves with CAS; a run of
// chunks is cut into blocks of one kind and size class here, so that most allocations cost no round
// trip. Retired blocks wait for their epoch (epochs.h), then come to the local free list of their
// class; what this compute node has beyond its keep goes to stacks in far memory for every compute
// node to draw from (shared_stack.h). A block is taken from: the local list, the blocks that have
// become safe, the current run, the shared stack, a new run — so memory is reused before it grows,
// and round trips are made only when a run is used up.
//
// Local memory stays bounded when an epoch does not move (a peer's operation is stuck): retired
// blocks beyond a limit are written to far memory, in blocks of their own, with a local note of
// their stamp.
//
// What a crash costs: the free and retired blocks that only the dead compute node knew of (its
// lists, at most a chunk a class in use; its queue; its runs) are lost to the pool, as is a chunk
// or magazine whose CAS had an unknown outcome. They are never handed out twice.
//
// Thread-safe. Nothing here blocks a thread; allocate() may cost round trips.
#pragma once

#include <cstdint>
#include <memory>

#include "pool/block.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

class Allocator {
 public:
  explicit Allocator(ComputeNode& node);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // kOutOfMemory, naming what was asked for, when no memory node has room even after waiting for
  // retired blocks; nothing is taken then. The incarnation is new to the block and not zero. An
  // item's block may be of a larger class than need be where memory is short.
  //
  // It waits for what can become safe while `op` lasts: blocks that were retired since two epochs
  // before its pin cannot. End the operation, co_await reclaimed(), and try again with another.
  Task<Result<Block>> allocate(Operation& op, BlockKind kind, std::size_t bytes);
  // The block is unreachable from far memory from now on, but others may still be reading it.
  void retire(const Block& block);
  // The block was never reachable by others: free at once.
  void release(const Block& block);

  // After kOutOfMemory, with no operation under way on this session: waits until what had been
  // retired is safe. False: there was nothing, or epochs stand still (a peer's operation is stuck).
  Task<bool> reclaimed(Session& session);

  std::uint64_t allocated() const;  // blocks, since start
  std::uint64_t freed() const;      // blocks retired or released, since start
  std::uint64_t waiting() const;    // retired blocks here that wait for their epoch or for use

  // The housekeeper's: moves what is safe to the free lists and spills surplus to far memory.
  Task<Status> collect(Operation& op);
  // At a clean close: gives every free block of this compute node to the shared stacks.
  Task<Status> give_back_all(Operation& op);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pando::pool
