//! State of each block of a model.

use super::ModelBlock;
use super::write_back::WrittenBy;

/// Purpose of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Unknown before the response.
    New,
    /// Copied from the host and only read since.
    Weight,
    /// Written, and still there after the response.
    State,
    /// Neither: its addresses belong to the model, but its content has no meaning.
    Blank,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) bytes: u64,
    pub(super) role: Role,
    /// Whether the host had its content before the first response.
    pub(super) copied_in: bool,
    /// Whether the memory was written by something that the host's copy does not contain.
    pub(super) written: bool,
    pub(super) dirty: Option<WrittenBy>,
    /// Writer of the content that is currently being copied back.
    pub(super) copying: Option<WrittenBy>,
    /// Number of the last run that touched the block.
    pub(super) touched: u64,
    /// Position in the order of swapping; valid for weights and state.
    pub(super) position: u32,
    /// Sequence number of the allocation.
    pub(super) allocated: u64,
    /// Index among the allocations of this run; `NONE` if the block is older.
    pub(super) in_run: u32,
}

pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
pub(super) struct Records(Vec<Option<Record>>);

impl Records {
    pub(super) fn get(&self, block: ModelBlock) -> Option<&Record> {
        self.0.get(block.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, block: ModelBlock) -> Option<&mut Record> {
        self.0.get_mut(block.0 as usize)?.as_mut()
    }

    pub(super) fn insert(&mut self, block: ModelBlock, record: Record) {
        let at = block.0 as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        self.0[at] = Some(record);
    }

    pub(super) fn remove(&mut self, block: ModelBlock) -> Option<Record> {
        self.0.get_mut(block.0 as usize)?.take()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ModelBlock, &Record)> {
        let records = (0..).map(ModelBlock).zip(&self.0);
        records.filter_map(|(block, record)| Some((block, record.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (ModelBlock, &mut Record)> {
        let records = (0..).map(ModelBlock).zip(&mut self.0);
        records.filter_map(|(block, record)| Some((block, record.as_mut()?)))
    }
}

/// Allocations and frees of one run, from which the peak of scratch memory follows.
#[derive(Clone, Debug, Default)]
pub(super) struct RunLog {
    lives: Vec<Life>,
    /// Events in order, as an index into `lives` and whether that life began.
    events: Vec<(u32, bool)>,
}

#[derive(Clone, Copy, Debug)]
struct Life {
    bytes: u64,
    block: ModelBlock,
    ended: bool,
}

impl RunLog {
    pub(super) fn alloc(&mut self, block: ModelBlock, bytes: u64) -> u32 {
        let life = u32::try_from(self.lives.len()).unwrap_or(NONE);
        self.lives.push(Life {
            bytes,
            block,
            ended: false,
        });
        self.events.push((life, true));
        life
    }

    pub(super) fn free(&mut self, life: u32) {
        if let Some(entry) = self.lives.get_mut(life as usize) {
            entry.ended = true;
            self.events.push((life, false));
        }
    }

    /// Returns the largest total of scratch at any time, in bytes, counting blocks that were allocated and freed in
    /// this run.
    pub(super) fn scratch_peak(&self) -> u64 {
        let mut now = 0_u64;
        let mut peak = 0;
        for &(life, began) in &self.events {
            let life = self.lives[life as usize];
            if life.ended && began {
                now = now.saturating_add(life.bytes);
                peak = peak.max(now);
            } else if life.ended {
                now = now.saturating_sub(life.bytes);
            }
        }
        peak
    }

    /// Iterates over the blocks of this run that still exist, in order of allocation.
    pub(super) fn remaining(&self) -> impl Iterator<Item = ModelBlock> {
        let remaining = self.lives.iter().filter(|life| !life.ended);
        remaining.map(|life| life.block)
    }

    pub(super) fn clear(&mut self) {
        self.lives.clear();
        self.events.clear();
    }
}
