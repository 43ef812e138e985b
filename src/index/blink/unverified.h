// Unverified: what READs brought of a leaf, before anyone has looked whether it may be believed.
// The leaf itself, with its entries, comes out by believe() alone.
#pragma once

#include <cstddef>
#include <expected>
#include <utility>

#include "fabric/verbs.h"
#include "index/blink/node.h"

namespace pando::index {

// L: a view of a leaf, made as L(bytes, geometry).
template <class L>
class Unverified {
 public:
  using Geometry = typename L::Geometry;

  // `geometry` must outlive it and its leaves.
  Unverified(fabric::Buffer image, const Geometry& geometry)
      : image_(std::move(image)), geometry_(&geometry) {}

  // Where READs land.
  std::byte* bytes() const { return image_.data(); }

  // The leaf if `belief`, a Verdict(L), is good; else that verdict. It is a view of this image.
  template <class Belief>
  std::expected<L, Verdict> believe(Belief&& belief) const {
    const L leaf = believed();
    const Verdict verdict = std::forward<Belief>(belief)(leaf);
    if (verdict != Verdict::kGood) return std::unexpected(verdict);
    return leaf;
  }
  // REQUIRES: the tree believes the image already: BLink::read() or lock() brought it.
  L believed() const { return L(image_.data(), *geometry_); }

 private:
  fabric::Buffer image_;
  const Geometry* geometry_;
};

}  // namespace pando::index
