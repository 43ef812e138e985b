// FreshBlock: a block that was allocated and that nothing in far memory leads to yet.
//
// Whoever allocates one may fail before it becomes part of an index, or be destroyed in the middle
// of a round trip. Then it frees itself: retired, so that nobody has it before a WRITE to it that
// is still under way is over (epochs.h, in_doubt.h).
#pragma once

#include <utility>

#include "base/mutants.h"
#include "pool/memory/allocator.h"
#include "pool/memory/block.h"
#include <pando/result.h>

namespace pando::pool {

class FreshBlock {
 public:
  FreshBlock() = default;
  FreshBlock(Allocator& allocator, const Block& block) : allocator_(&allocator), block_(block) {}
  FreshBlock(FreshBlock&& other) noexcept
      : allocator_(std::exchange(other.allocator_, nullptr)), block_(other.block_) {}
  FreshBlock& operator=(FreshBlock&& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(block_, other.block_);
    return *this;
  }
  FreshBlock(const FreshBlock&) = delete;
  FreshBlock& operator=(const FreshBlock&) = delete;
  ~FreshBlock() {
    if (base::mutated(base::Mutant::kDroppedBlock)) return;
    if (allocator_ != nullptr) allocator_->retire(block_);
  }

  const Block& operator*() const { return block_; }
  const Block* operator->() const { return &block_; }

  // To be called before a verb is posted that may make something lead to it: it belongs there now.
  void publish() { allocator_ = nullptr; }
  // Nothing leads to it, and every WRITE to it is over: free at once.
  void release() {
    if (allocator_ != nullptr) std::exchange(allocator_, nullptr)->release(block_);
  }

 private:
  Allocator* allocator_ = nullptr;  // none: it is not this one's to free
  Block block_{};
};

}  // namespace pando::pool
