// Writing whole nodes back, in the orders that node.h asks for.
#pragma once

#include "fabric/verbs.h"
#include "index/blink/node.h"

namespace pando::index {

// The header line but for its lock word, which belongs to the lock.
template <class K>
void write_header(fabric::Batch& batch, const NodeRef& ref, Node<K> node) {
  constexpr std::size_t kFrom = HeaderAt::kSibling;
  batch.write(ref.address + kFrom, node.bytes() + kFrom, kLineBytes - kFrom);
}

// Every line but the header.
template <class K>
void write_lines(fabric::Batch& batch, const NodeRef& ref, Node<K> node) {
  batch.write(ref.address + kLineBytes, node.line(1), node.size() - kLineBytes);
}

// A new node, that nobody can reach yet.
template <class K>
void write_new(fabric::Batch& batch, const NodeRef& ref, Node<K> node) {
  write_header(batch, ref, node);
  write_lines(batch, ref, node);
}

// One line, after a change of its entries.
template <class K>
void write_line(fabric::Batch& batch, const NodeRef& ref, Node<K> node, std::size_t line) {
  node.bump_entry_version(line);
  if (mutated(Mutant::kKeyBeforeValue)) {
    constexpr std::size_t kHalf = kLineBytes / 2;
    batch.write(ref.address + line * kLineBytes, node.line(line), kHalf);
    batch.write(ref.address + line * kLineBytes + kHalf, node.line(line) + kHalf, kHalf);
    return;
  }
  batch.write(ref.address + line * kLineBytes, node.line(line), kLineBytes);
}

// The left node of a split: `node` has its new high fence and sibling, and what went right is
// cleared, all with the next version. Header first, then lines.
template <class K>
void write_split(fabric::Batch& batch, const NodeRef& ref, Node<K> node) {
  if (mutated(Mutant::kLinesBeforeHeader)) write_lines(batch, ref, node);
  write_header(batch, ref, node);
  if (!mutated(Mutant::kLinesBeforeHeader)) write_lines(batch, ref, node);
}

}  // namespace pando::index
