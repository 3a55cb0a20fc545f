//! What a model's first run reveals of its blocks (M2.8, mechanisms §2.7).

use super::ModelBlock;
use super::order::Paths;
use super::outcome::{BlockTaken, Phase, Touch, Verdict};
use super::records::{NONE, Record, Records, Role, RunLog};
use super::write_back::{EvictionState, SwapAction, WrittenBy};

/// Number of runs over which mispredictions are counted.
const WINDOW: u32 = 20;
/// Number of first touches for which one misprediction is the limit.
const TOUCHES_PER_MISMATCH: u64 = 20;

/// Knowledge about a model's blocks, learned from its runs.
///
/// A block that the host filled before the first response and that kernels only read is a *weight*. A block that was
/// written and is there after the response is *state*, which is part of the model. A block that was allocated and freed
/// within the run is *scratch*, which is never swapped. A weight that is written later, by a kernel or by the host, is
/// state from then on. The host keeps what it copied in before the first response (M2.5), so only what was written
/// since is dirty.
///
/// Later runs are compared with the order of the first: a kernel that waits for a group while others before it in the
/// order have not been touched has been mispredicted. Beyond 5 % of first touches over 20 runs, the next run is
/// recorded again, and the orders of branches are united, with the most frequent path first.
///
/// Requests of one model are assumed to follow one another; if they overlap, a run lasts from response to response. A
/// launch costs O(blocks it touches). A free costs O(1) for scratch, and O(blocks of the model) for other blocks and
/// while a run is recorded. A response costs O(blocks of the run), and O(blocks × log) if the order changes. Messages
/// about unknown blocks are ignored.
#[derive(Clone, Debug)]
pub struct Tracking {
    phase: Phase,
    /// Whether the first response has been sent.
    answered: bool,
    pub(super) records: Records,
    log: RunLog,
    allocated: u64,
    run: u64,
    /// First touches of this run, while it is recorded.
    touching: Vec<ModelBlock>,
    paths: Paths,
    /// Weights and state in the order of swapping, as of the last response, without what was freed since.
    order: Vec<ModelBlock>,
    changed: bool,
    scratch_peak: u64,
    /// Position after the last one that this run has touched.
    expected: u32,
    /// Counts of this window: runs that touched anything, their first touches, and the mispredicted ones.
    runs: u32,
    touches: u64,
    mismatches: u64,
    touches_before: u64,
    pub(super) leaving: EvictionState,
    /// Number of blocks that are being copied back.
    pub(super) copying: u32,
}

impl Default for Tracking {
    fn default() -> Self {
        Self::new()
    }
}

impl Tracking {
    /// Creates the tracking of a model that has not run.
    #[must_use]
    pub fn new() -> Self {
        Self {
            phase: Phase::Recording,
            answered: false,
            records: Records::default(),
            log: RunLog::default(),
            allocated: 0,
            run: 1,
            touching: Vec::new(),
            paths: Paths::default(),
            order: Vec::new(),
            changed: false,
            scratch_peak: 0,
            expected: 0,
            runs: 0,
            touches: 0,
            mismatches: 0,
            touches_before: 0,
            leaving: EvictionState::Resident,
            copying: 0,
        }
    }

    /// Records the allocation of a block of `bytes` bytes.
    ///
    /// # Errors
    /// Returns [`BlockTaken`] if the block already exists.
    pub fn alloc(&mut self, block: ModelBlock, bytes: u64) -> Result<(), BlockTaken> {
        if self.records.get(block).is_some() {
            return Err(BlockTaken { block });
        }
        let record = Record {
            bytes,
            role: Role::New,
            copied_in: false,
            written: false,
            dirty: None,
            copying: None,
            touched: 0,
            position: NONE,
            allocated: self.allocated,
            in_run: self.log.alloc(block, bytes),
        };
        self.allocated += 1;
        self.records.insert(block, record);
        Ok(())
    }

    /// Records that the host has copied something into a block.
    pub fn copied_in(&mut self, block: ModelBlock) {
        if self.answered {
            self.write(block, WrittenBy::Host);
        } else if let Some(record) = self.records.get_mut(block) {
            record.copied_in = true;
        }
    }

    /// Records the launch of a kernel with these blocks among its arguments.
    pub fn launch(&mut self, touches: &[Touch]) {
        for touch in touches {
            let Some(record) = self.records.get_mut(touch.block) else {
                continue;
            };
            if record.touched != self.run {
                record.touched = self.run;
                if self.phase == Phase::Recording {
                    self.touching.push(touch.block);
                } else if record.position != NONE {
                    self.touches += 1;
                    self.mismatches += u64::from(touch.waited && record.position > self.expected);
                    self.expected = self.expected.max(record.position + 1);
                }
            }
            if touch.writes {
                self.write(touch.block, WrittenBy::Kernel);
            }
        }
    }

    /// Records a write that the host's copy does not contain.
    fn write(&mut self, block: ModelBlock, by: WrittenBy) {
        if let Some(record) = self.records.get_mut(block) {
            record.written = true;
            record.dirty.get_or_insert(by);
            if matches!(record.role, Role::Weight | Role::Blank) {
                // Weights keep their place in the order; a blank block gets one.
                self.changed |= record.role == Role::Blank;
                record.role = Role::State;
            }
        }
    }

    /// Records that a block was freed. `actions` may receive the end of an eviction that waited only for this block.
    pub fn free(&mut self, block: ModelBlock, actions: &mut Vec<SwapAction>) {
        let Some(record) = self.records.remove(block) else {
            return;
        };
        self.log.free(record.in_run);
        if record.touched == self.run && self.phase == Phase::Recording {
            self.touching.retain(|&touched| touched != block);
        }
        if matches!(record.role, Role::Weight | Role::State) {
            self.paths.forget(block);
            self.changed = true;
            self.order.retain(|&ordered| ordered != block);
        }
        self.copying -= u32::from(record.copying.is_some());
        self.settle(actions);
    }

    /// Records that a response was sent, which ends the run, and returns the result for the order.
    pub fn response(&mut self) -> Verdict {
        self.answered = true;
        self.scratch_peak = self.scratch_peak.max(self.log.scratch_peak());
        self.classify();
        let recorded = self.phase == Phase::Recording;
        if recorded {
            let records = &self.records;
            self.touching.retain(|&block| {
                let record = records.get(block);
                record.is_some_and(|record| matches!(record.role, Role::Weight | Role::State))
            });
            self.paths.add(&self.touching);
            self.touching.clear();
            self.phase = Phase::Tracked;
        }
        let changed = self.changed;
        if recorded || changed {
            self.reorder(recorded);
        }
        self.run += 1;
        self.expected = 0;
        if recorded {
            Verdict::Learned
        } else if self.mispredicted() {
            self.phase = Phase::Recording;
            Verdict::RecordNext
        } else if changed {
            Verdict::Changed
        } else {
            Verdict::Kept
        }
    }

    /// Assigns roles to the blocks of this run that still exist.
    fn classify(&mut self) {
        for block in self.log.remaining() {
            if let Some(record) = self.records.get_mut(block) {
                record.in_run = NONE;
                record.role = if record.written {
                    Role::State
                } else if record.copied_in {
                    Role::Weight
                } else {
                    Role::Blank
                };
                self.changed |= record.role != Role::Blank;
            }
        }
        self.log.clear();
    }

    /// Orders weights and state anew: by the paths, or as before; untouched ones last, in order of allocation.
    fn reorder(&mut self, by_paths: bool) {
        for (_, record) in self.records.iter_mut() {
            record.position = NONE;
        }
        if by_paths {
            self.order.clear();
            self.order.extend(self.paths.touches());
        }
        let mut next = 0;
        let records = &mut self.records;
        self.order.retain(|&block| {
            let Some(record) = records.get_mut(block) else {
                return false;
            };
            let first = record.position == NONE;
            if first {
                record.position = next;
                next += 1;
            }
            first
        });
        let ordered = self.order.len();
        for (block, record) in self.records.iter() {
            if record.position == NONE && matches!(record.role, Role::Weight | Role::State) {
                self.order.push(block);
            }
        }
        let allocated =
            |block: &ModelBlock| self.records.get(*block).map(|record| record.allocated);
        self.order[ordered..].sort_unstable_by_key(allocated);
        for &block in &self.order[ordered..] {
            if let Some(record) = self.records.get_mut(block) {
                record.position = next;
                next += 1;
            }
        }
        self.changed = false;
    }

    /// Returns whether a window ends with this run and too much of it was mispredicted.
    fn mispredicted(&mut self) -> bool {
        // Runs without any touch are not informative.
        self.runs += u32::from(self.touches > self.touches_before);
        self.touches_before = self.touches;
        if self.runs < WINDOW {
            return false;
        }
        let mispredicted = self.mismatches * TOUCHES_PER_MISMATCH > self.touches;
        self.runs = 0;
        self.touches = 0;
        self.touches_before = 0;
        self.mismatches = 0;
        mispredicted
    }

    /// Returns whether the current run is recorded, or the order is known.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Iterates over what has to be swapped in: weights and state with their bytes, in the order of swapping. That is
    /// the order of first touches, with untouched blocks last. As of the last response, without blocks freed since.
    pub fn swap_order(&self) -> impl Iterator<Item = (ModelBlock, u64)> {
        self.of_role(|_| true)
    }

    /// Iterates over the weights of [`Tracking::swap_order`].
    pub fn weights(&self) -> impl Iterator<Item = (ModelBlock, u64)> {
        self.of_role(|role| role == Role::Weight)
    }

    /// Iterates over the state of [`Tracking::swap_order`].
    pub fn state(&self) -> impl Iterator<Item = (ModelBlock, u64)> {
        self.of_role(|role| role == Role::State)
    }

    fn of_role(&self, wanted: impl Fn(Role) -> bool) -> impl Iterator<Item = (ModelBlock, u64)> {
        self.order.iter().filter_map(move |&block| {
            let record = self.records.get(block)?;
            wanted(record.role).then_some((block, record.bytes))
        })
    }

    /// Returns the largest amount of scratch that a run had at any time, in bytes.
    #[must_use]
    pub const fn scratch_peak(&self) -> u64 {
        self.scratch_peak
    }

    /// Returns the number of mispredicted first touches and of all first touches in the runs of this window.
    #[must_use]
    pub const fn mismatches(&self) -> (u64, u64) {
        (self.mismatches, self.touches)
    }
}
