// The defects that the reference can have, each one of a kind seen in real indexes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace pando::reference {

enum class Fault : std::uint8_t {
  kNone,
  kLostUpdate,            // an acknowledged overwrite is dropped now and then
  kStaleRead,             // a get answers with the value before
  kTornRead,              // a get mixes two values
  kStaleCache,            // later compute nodes believe what they read once
  kScanRepeats,           // a scan returns a key twice
  kScanMisses,            // a scan skips a key
  kScanUnordered,         // a scan swaps two keys
  kEraseResurrects,       // an acknowledged erase leaves the key
  kInsertRace,            // two inserts of one key may both win
  kLongKeysCut,           // keys count only to their first kilobyte
  kKeysEndAtZero,         // keys end at a zero byte
  kSignedIntegers,        // integers compare as signed
  kBigValuesCut,          // values are cut at 64 KiB
  kMultiGetDropsRepeats,  // a repeated key in one multi_get is "absent"
  kMemoryLeak,            // erases and drops give nothing back
  kOverBudget,            // caches take more than their budget
  kExtraRoundTrip,        // a get takes two round trips now and then
  kOutOfMemoryLosesAKey,  // a refused insert harms another key
  kDropInUse,             // an index in use can be dropped
};

struct FaultName {
  Fault fault;
  std::string_view name;
};

inline constexpr std::array kFaultNames{
    FaultName{Fault::kLostUpdate, "lost_update"},
    FaultName{Fault::kStaleRead, "stale_read"},
    FaultName{Fault::kTornRead, "torn_read"},
    FaultName{Fault::kStaleCache, "stale_cache"},
    FaultName{Fault::kScanRepeats, "scan_repeats"},
    FaultName{Fault::kScanMisses, "scan_misses"},
    FaultName{Fault::kScanUnordered, "scan_unordered"},
    FaultName{Fault::kEraseResurrects, "erase_resurrects"},
    FaultName{Fault::kInsertRace, "insert_race"},
    FaultName{Fault::kLongKeysCut, "long_keys_cut"},
    FaultName{Fault::kKeysEndAtZero, "keys_end_at_zero"},
    FaultName{Fault::kSignedIntegers, "signed_integers"},
    FaultName{Fault::kBigValuesCut, "big_values_cut"},
    FaultName{Fault::kMultiGetDropsRepeats, "multi_get_drops_repeats"},
    FaultName{Fault::kMemoryLeak, "memory_leak"},
    FaultName{Fault::kOverBudget, "over_budget"},
    FaultName{Fault::kExtraRoundTrip, "extra_round_trip"},
    FaultName{Fault::kOutOfMemoryLosesAKey, "out_of_memory_loses_a_key"},
    FaultName{Fault::kDropInUse, "drop_in_use"},
};

inline Fault chosen_fault() {
  static const Fault fault = [] {
    const char* name = std::getenv("PANDO_REFERENCE_FAULT");
    if (name == nullptr || *name == '\0') return Fault::kNone;
    const auto found = std::ranges::find(kFaultNames, std::string_view(name), &FaultName::name);
    if (found == kFaultNames.end()) std::abort();  // a misspelt fault must not pass for none
    return found->fault;
  }();
  return fault;
}

inline bool has_fault(Fault fault) { return chosen_fault() == fault; }

}  // namespace pando::reference
