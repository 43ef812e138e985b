// Sherman: put, insert, update. Two round trips: lock and READ the leaf; WRITE the line and unlock.
#pragma once

#include "index/blink/node_write.h"
#include "index/sherman/sherman.h"

namespace pando::index::sherman {

template <class K>
Task<Status> Sherman<K>::put(Operation& op, Key key, std::string_view value, PutMode mode) {
  const View wanted = K::view(key);
  NodeLock lock(tree().locks());
  Result<NewEntry> prepared = co_await prepare(op, wanted, value, lock);
  if (!prepared) co_return fail(prepared.error());
  NewEntry& entry = *prepared;
  const Unverified<Leaf<K>> image = new_image(op);
  Result<Found<K>> found = co_await tree().lock(op, wanted, 0, image.bytes(), lock);
  Status status = found ? Status{} : fail(found.error());
  if (status) {
    Leaf<K> leaf = image.believed();
    Result<std::optional<Match>> match = co_await find_in(op, leaf, wanted);
    const bool present = match && match->has_value();
    const std::size_t slot = present ? (*match)->slot : leaf.free_slot();
    if (!match) {
      status = fail(match.error());
    } else if (present == (mode == PutMode::kInsert) && mode != PutMode::kPut) {
      status = co_await tree().locks().unlock(op, lock);
      if (status) status = fail(present ? ErrorCode::kExists : ErrorCode::kNotFound);
    } else if (slot < leaf.capacity()) {
      entry.publish();
      const pool::ItemPointer had = present ? item_of(leaf, slot) : pool::ItemPointer{};
      set(leaf, slot, entry);
      fabric::Batch batch(op.cost());
      write_line(batch, found->node, Node<K>(leaf), leaf.line_of(slot));
      const FetchedItem none;
      status = co_await write_and_retire(op, batch, lock, had, present ? (*match)->item : none);
    } else {
      status = co_await split(op, found->node, leaf, lock, entry);
    }
    // Others' unfinished work is not this operation's success or failure.
    if (status && found->unposted) co_await tree().post_found(op, 0, *found);
  }
  entry.give_up(status);
  co_return status;
}

}  // namespace pando::index::sherman
