// Sherman: put, insert, update. Two round trips: lock and READ the leaf; WRITE the line and unlock.
#include "index/common/node_write.h"
#include "index/sherman/sherman.h"

namespace pando::index::sherman {

template <class K>
void Sherman<K>::set(Leaf<K> leaf, std::size_t slot, const NewEntry& entry) const {
  if (entry.item) {
    leaf.set_item(slot, entry.word, entry.item->item.pointer);
  } else {
    leaf.set_value(slot, entry.word, entry.value);
  }
}

template <class K>
Task<Status> Sherman<K>::put(Operation& op, Key key, std::string_view value, PutMode mode) {
  const View wanted = K::view(key);
  Result<std::optional<PreparedItem>> item = co_await prepare(op, wanted, value);
  if (!item) co_return fail(item.error());
  NewEntry entry{wanted, key_word(wanted), value, std::move(*item)};

  const fabric::Buffer buffer = op.buffer(leaf_bytes());
  NodeLock lock(tree().locks());
  if (entry.item) {
    // Nobody can reach the item before the leaf is written, so it travels with the locking.
    lock.carry(entry.item->item.block.address, entry.item->buffer.data(), entry.item->bytes);
  }
  Result<Found<K>> found = co_await tree().lock(op, wanted, 0, buffer.data(), lock);
  Status status = found ? Status{} : fail(found.error());
  bool published = false;
  if (status) {
    Leaf<K> leaf = leaf_at(buffer.data());
    Result<std::optional<Match>> match = co_await find_in(op, leaf, wanted);
    if (!match) co_return fail(match.error());
    const bool present = match->has_value();
    if (present == (mode == PutMode::kInsert) && mode != PutMode::kPut) {
      status = co_await tree().locks().unlock(op, lock);
      if (status) status = fail(present ? ErrorCode::kExists : ErrorCode::kNotFound);
    } else if (present) {
      published = true;
      status = co_await overwrite(op, found->node, leaf, lock, **match, entry);
    } else if (const std::size_t slot = leaf.free_slot(); slot < leaf.capacity()) {
      published = true;
      set(leaf, slot, entry);
      fabric::Batch batch(op.cost());
      write_line(batch, found->node, Node<K>(leaf), leaf.line_of(slot));
      status = co_await tree().locks().write_and_unlock(op, batch, lock);
    } else {
      status = co_await split(op, found->node, leaf, lock, entry);
      // Nothing was written where there was no room; of other failures one cannot know.
      published = status || status.error().code() != ErrorCode::kOutOfMemory;
    }
    // Others' unfinished work is not this operation's success or failure.
    if (status && found->unposted) co_await tree().post_found(op, 0, *found);
  }
  if (!published && entry.item) tree().node().allocator().release(entry.item->item.block);
  co_return status;
}

template <class K>
Task<Status> Sherman<K>::overwrite(Operation& op, const NodeRef& ref, Leaf<K> leaf, NodeLock& lock,
                                   const Match& match, const NewEntry& entry) {
  const bool had_item = leaf.is_item(match.slot);
  const pool::ItemPointer old = had_item ? leaf.item(match.slot) : pool::ItemPointer{};
  std::uint32_t incarnation = match.item.view ? match.item.view->incarnation : 0;

  set(leaf, match.slot, entry);
  fabric::Batch batch(op.cost());
  fabric::Buffer header;
  if (had_item && !match.item.view) {
    header = op.buffer(sizeof(pool::ItemHeader));  // to learn its incarnation on the way
    batch.read(old.address(), header.data(), sizeof(pool::ItemHeader));
  }
  write_line(batch, ref, Node<K>(leaf), leaf.line_of(match.slot));
  Status status = co_await tree().locks().write_and_unlock(op, batch, lock);
  if (!status || !had_item) co_return status;
  if (header) {
    incarnation = reinterpret_cast<const pool::ItemHeader*>(header.data())->incarnation;
  }
  if (mutated(Mutant::kUpdateKeepsOld)) co_return status;
  tree().node().allocator().retire(pool::item_block(old, incarnation));
  co_return status;
}

// Of the members, those defined in this file.
template class Sherman<IntKeys>;
template class Sherman<ByteKeys>;

}  // namespace pando::index::sherman
