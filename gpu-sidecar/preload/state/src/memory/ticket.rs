//! Tickets that stand in for legacy inter-process handles (`cuIpcGetMemHandle`) of plain allocations: a process, one of its files, and a
//! random number.

use std::collections::BTreeMap;

use crate::Address;

/// First bytes of a ticket, which differ from those of the driver's handles.
const MARK: [u8; 8] = *b"weirmem1";

/// `CUipcMemHandle`, as the program passes it on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    words: [[u8; 8]; 8],
}

/// Contents of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketContents {
    /// Id of the exporting process.
    pub pid: u64,
    /// Descriptor number of the list in the exporting process.
    pub list: u64,
    /// Random number, which cannot be guessed.
    pub id: u64,
    /// Offset of the allocation within its block, in bytes.
    pub offset: u64,
}

impl Ticket {
    /// Encodes the contents as a ticket.
    #[must_use]
    pub fn new(contents: TicketContents) -> Self {
        let mut words = [[0; 8]; 8];
        words[0] = MARK;
        let numbers = [contents.pid, contents.list, contents.id, contents.offset];
        for (word, number) in words[1..].iter_mut().zip(numbers) {
            *word = number.to_le_bytes();
        }
        Self { words }
    }

    /// Decodes a ticket; `None` if it is a handle of the driver.
    #[must_use]
    pub fn read(&self) -> Option<TicketContents> {
        let [mark, pid, list, id, offset, ..] = self.words;
        (mark == MARK).then(|| TicketContents {
            pid: u64::from_le_bytes(pid),
            list: u64::from_le_bytes(list),
            id: u64::from_le_bytes(id),
            offset: u64::from_le_bytes(offset),
        })
    }
}

/// Block of another process that is mapped here, and how often it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenedBlock {
    /// First address.
    at: Address,
    /// Size in bytes.
    bytes: u64,
    /// Number of times it was opened and not closed.
    times: u32,
}

/// Blocks of other processes that are mapped here, by the random number of their ticket.
#[derive(Debug, Default)]
pub struct OpenedBlocks(BTreeMap<u64, OpenedBlock>);

impl OpenedBlocks {
    /// Opens a block once more. Returns the address at an offset in it, `Some(None)` for an offset beyond its end, which opens nothing;
    /// `None` if it is not open yet.
    pub fn open_again(&mut self, id: u64, offset: u64) -> Option<Option<Address>> {
        let opened = self.0.get_mut(&id)?;
        if offset >= opened.bytes {
            return Some(None);
        }
        opened.times += 1;
        Some(Some(opened.at + offset))
    }

    /// Notes that a block was opened and mapped.
    pub fn open(&mut self, id: u64, at: Address, bytes: u64) {
        let times = 1;
        self.0.insert(id, OpenedBlock { at, bytes, times });
    }

    /// Closes a block once. Returns whether it is to be unmapped.
    pub fn close(&mut self, at: Address) -> bool {
        let mut all = self.0.values_mut();
        if let Some(opened) = all.find(|opened| opened.at == at)
            && opened.times > 1
        {
            opened.times -= 1;
            return false;
        }
        self.forget(at);
        true
    }

    /// Forgets a block that is unmapped.
    pub fn forget(&mut self, at: Address) {
        self.0.retain(|_, opened| opened.at != at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_decodes_to_what_was_encoded() {
        let contents = TicketContents {
            pid: 7,
            list: 1_030,
            id: u64::MAX - 1,
            offset: 512,
        };
        assert_eq!(size_of::<Ticket>(), 64);
        assert_eq!(Ticket::new(contents).read(), Some(contents));
        let mut foreign = Ticket::new(contents);
        foreign.words[0][7] ^= 1;
        assert_eq!(foreign.read(), None);
    }

    #[test]
    fn a_block_is_unmapped_when_it_is_closed_as_often_as_it_was_opened() {
        let mut blocks = OpenedBlocks::default();
        assert_eq!(blocks.open_again(7, 0), None);
        blocks.open(7, 100, 20);
        assert_eq!(blocks.open_again(7, 19), Some(Some(119)));
        assert_eq!(blocks.open_again(7, 20), Some(None), "it opens nothing");
        assert!(!blocks.close(100));
        assert!(blocks.close(100));
        assert_eq!(blocks.open_again(7, 0), None);
        assert!(blocks.close(100), "unknown blocks have nothing to keep");
    }

    #[test]
    fn a_forgotten_block_is_opened_anew() {
        let mut blocks = OpenedBlocks::default();
        blocks.open(7, 100, 20);
        blocks.open(8, 200, 20);
        blocks.forget(100);
        assert_eq!(blocks.open_again(7, 0), None);
        assert_eq!(blocks.open_again(8, 1), Some(Some(201)));
    }
}
