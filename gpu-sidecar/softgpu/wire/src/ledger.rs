//! The file `ledger`: lines of 48 bytes, who held what from when to when. It begins with 48 bytes that name it.

use device::{Span, Time};

/// Bytes of a line.
pub const LINE: usize = 48;

/// The first line.
#[must_use]
pub fn head() -> [u8; LINE] {
    let mut head = [0; LINE];
    head[..16].copy_from_slice(b"weir softgpu 1\n\0");
    head
}

/// What is said in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Thousandths of SMs of a GPU or slice, by its number.
    Sms(u32),
    /// Bytes per second of a link, by its number.
    Link(u32),
    /// Bytes of memory of a GPU or slice, by its number.
    Memory(u32),
    /// A process, by the number it has in the other lines, has begun on a GPU or slice: `amount` is its pid.
    Process(u32),
}

/// A line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// What was held.
    pub what: What,
    /// Who held it: the number of a process, as a [`What::Process`] line has introduced it.
    pub process: u32,
    /// How much.
    pub amount: u64,
    /// Since when.
    pub from: Time,
    /// Until when.
    pub to: Time,
    /// For which command; in a graph, all nodes have the same. `u64::MAX`: for none. Of a [`What::Process`] line the beginning of the
    /// program's name ([`name_word`]).
    pub command: u64,
}

/// Returns the first eight bytes of a program's name as a word; `u64::MAX`, which is no text, for an empty one.
#[must_use]
pub fn name_word(name: &str) -> u64 {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    if name.is_empty() {
        u64::MAX
    } else {
        u64::from_le_bytes(bytes)
    }
}

/// Returns the name that a word holds; none if it holds no printable text.
#[must_use]
pub fn name_of_word(word: u64) -> Option<String> {
    let bytes = word.to_le_bytes();
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(8);
    let is_text = end > 0 && bytes[..end].iter().all(u8::is_ascii_graphic);
    is_text.then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
}

impl Line {
    /// How long it was held.
    #[must_use]
    pub const fn span(&self) -> Span {
        self.to.since(self.from)
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; LINE] {
        let (kind, number) = match self.what {
            What::Sms(unit) => (1, unit),
            What::Link(link) => (2, link),
            What::Memory(unit) => (3, unit),
            What::Process(unit) => (4, unit),
        };
        let words = [
            kind | u64::from(number) << 32,
            u64::from(self.process),
            self.amount,
            self.from.0,
            self.to.0,
            self.command,
        ];
        let mut bytes = [0; LINE];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// From bytes; `None` for what is no line.
    #[must_use]
    pub fn decode(bytes: &[u8; LINE]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte]));
        let number = u32::try_from(word(0) >> 32).ok()?;
        let what = match word(0) & 0xffff_ffff {
            1 => What::Sms(number),
            2 => What::Link(number),
            3 => What::Memory(number),
            4 => What::Process(number),
            _ => return None,
        };
        Some(Self {
            what,
            process: u32::try_from(word(1)).ok()?,
            amount: word(2),
            from: Time(word(3)),
            to: Time(word(4)),
            command: word(5),
        })
    }
}

/// All whole lines of a file; `None`: it is not one of these.
#[must_use]
pub fn read(bytes: &[u8]) -> Option<Vec<Line>> {
    let rest = bytes.strip_prefix(&head())?;
    rest.as_chunks::<LINE>()
        .0
        .iter()
        .map(Line::decode)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_far_as_they_fit() {
        for (name, back) in [
            ("weir", Some("weir")),
            ("model-server", Some("model-se")),
            ("", None),
            ("a b", None),
            ("äöü", None),
        ] {
            assert_eq!(name_of_word(name_word(name)).as_deref(), back, "{name}");
        }
    }

    #[test]
    fn lines_come_back() {
        let line = |what| Line {
            what,
            process: 7,
            amount: u64::MAX,
            from: Time(1),
            to: Time(2),
            command: 3,
        };
        let lines = [
            What::Sms(1),
            What::Link(2),
            What::Memory(3),
            What::Process(4),
        ]
        .map(line);
        let mut bytes = head().to_vec();
        for line in &lines {
            bytes.extend(line.encode());
        }
        bytes.extend([1, 2, 3]);
        assert_eq!(read(&bytes).unwrap(), lines);
        assert_eq!(read(b"something else"), None);
        assert_eq!(Line::decode(&[0; LINE]), None);
    }
}
