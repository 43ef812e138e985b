// Mutants: deliberate faults in protocols, to prove that the checks find such faults.
//
// Each is one line at the place that it breaks: `if (mutated(Mutant::kNoFence)) …`. In the library
// mutated() is constant and false, and the line is gone. The tests compile a copy of their own with
// PANDO_MUTANTS, where one mutant at a time can be switched on: tests/mutants.
#pragma once

#include <cstdint>

namespace pando::base {

enum class Mutant : std::uint8_t {
  kNone,
  // Reading
  kNoVersionCheck,   // a torn node is believed
  kBookendVersions,  // only the first and last line's versions are compared
  kNoBirthCheck,     // a reference to a former life of a block is believed
  kNoFenceCheck,     // a cached route is believed whatever the node's high fence says
  kScanWithGaps,     // a scan does not see that a leaf does not continue the one before
  kScanTwice,        // a key that stands in two lines of one READ is returned twice
  kNoBitmapCheck,    // chime: a neighbourhood is believed wherever its keys stand
  kNoReplicaCheck,  // chime: a replica is believed of whatever leaf it is, however far that reaches
  kLateDelegation,  // combining: an execution that is under way already serves a read that comes
                    // late
  kWrittenTwice,    // combining: a write is tried again though its destroyed leader may have
                    // written its value
  kNoPartCheck,     // chime: what a scan reads of a leaf is believed whatever it says
  kBlindSpeculation,  // chime: a single entry is believed whatever it holds
  // Writing
  kUnlockFirst,        // the lock is freed before what it guards is written
  kKeyBeforeValue,     // an entry's line is written in two halves
  kLinesBeforeHeader,  // a split clears entries before readers are sent to the right
  kLostSibling,        // a split forgets the node's right neighbour
  kNoFloor,            // an absorbing node's lines may be mixed with older ones
  kNoLock,             // a lock that someone else holds is taken for one's own
  // Freeing
  kNoEpochs,        // retired blocks are reused at once
  kUpdateKeepsOld,  // an update does not free what it replaces
  kDroppedFetch,    // a task that is dropped loses the chunks that it was taking
  kDroppedBlock,    // a task that is dropped loses a block that nothing leads to yet
  // Faults
  kNoTakeover,     // a dead owner's lock is never taken
  kNoFence,        // a silent client is declared dead without being shut out
  kNoRepair,       // what the dead left half done is taken for whole
  kNoLeaving,      // a merger does not say whom it is about to absorb
  kForgottenLock,  // a lock whose CAS had an unknown outcome is not given back
  // Clients that come, go and come back
  kOldGeneration,       // tcp: a connection of an older generation is let in, and used
  kLeaveClosesNothing,  // who has left can go on over connections that are open
  kEarlyFence,          // a fence is answered while connections are open
  kNeverForgotten,      // those who die on their way in are let in for ever
  kNoQuiesce,           // who leaves proves nothing: its locks and verbs may be left behind
  kInDoubtIsOver,       // a verb of unknown outcome does not hold the epoch
  kHalfFence,           // a client is declared dead though a memory node could not be told
  kFenceStopsHeart,     // no heartbeat while the silent are looked after
  kClosedLedger,        // who leaves strikes what it lists, though some is not given back
  // What the dead held free
  kBegunIsFree,       // a listed block is taken for free though its holder had begun to use it
  kGivenWhileListed,  // a block goes to a shared stack while its holder's ledger lists it
  kNothingListed,     // the ledger is never written
  kRecoveredTwice,    // what the dead held is given away, and their ledger goes on listing it
  // Recycling
  kGivenTwice,  // a recycled chunk stays free when it is taken
};

#if defined(PANDO_MUTANTS)
// Which one is on. Set while no check runs.
inline Mutant active_mutant = Mutant::kNone;
inline bool mutated(Mutant mutant) { return mutant == active_mutant; }
#else
constexpr bool mutated(Mutant) { return false; }
#endif

}  // namespace pando::base
