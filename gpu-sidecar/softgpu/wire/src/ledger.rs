//! The file `ledger`: a header of 48 bytes, then one line of 48 bytes for each interval in which a process held an
//! amount of a resource.

use device::{Span, Time};

/// Length of a line in bytes.
pub const LINE: usize = 48;

/// Returns the header of the file.
#[must_use]
pub fn head() -> [u8; LINE] {
    let mut head = [0; LINE];
    head[..16].copy_from_slice(b"weir softgpu 1\n\0");
    head
}

/// Meaning of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// Thousandths of SMs of a GPU or slice, by its number.
    Sms(u32),
    /// Bytes per second of a link, by its number.
    Link(u32),
    /// Bytes of memory of a GPU or slice, by its number.
    Memory(u32),
    /// Start of a process on the GPU or slice of this number: `amount` is its pid.
    Process(u32),
}

/// A line of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Resource held, or the start of a process.
    pub kind: LineKind,
    /// Number of the process, introduced by its [`LineKind::Process`] line.
    pub process: u32,
    /// Amount held, in the unit of `kind`; the pid for a [`LineKind::Process`] line.
    pub amount: u64,
    /// Begin of the interval.
    pub from: Time,
    /// End of the interval.
    pub to: Time,
    /// Command for which the resource was held; all nodes of a graph have the same, and `u64::MAX` is no command. In a
    /// [`LineKind::Process`] line, the beginning of the program's name ([`name_word`]).
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

/// Returns the name that a word holds, or `None` if it holds no printable text.
#[must_use]
pub fn name_of_word(word: u64) -> Option<String> {
    let bytes = word.to_le_bytes();
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(8);
    let is_text = end > 0 && bytes[..end].iter().all(u8::is_ascii_graphic);
    is_text.then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
}

impl Line {
    /// Returns the length of the interval.
    #[must_use]
    pub const fn span(&self) -> Span {
        self.to.since(self.from)
    }

    /// Encodes the line as six little-endian words.
    #[must_use]
    pub fn encode(&self) -> [u8; LINE] {
        let (kind, number) = match self.kind {
            LineKind::Sms(unit) => (1, unit),
            LineKind::Link(link) => (2, link),
            LineKind::Memory(unit) => (3, unit),
            LineKind::Process(unit) => (4, unit),
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

    /// Decodes a line; returns `None` for an unknown kind.
    #[must_use]
    pub fn decode(bytes: &[u8; LINE]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte]));
        let number = u32::try_from(word(0) >> 32).ok()?;
        let kind = match word(0) & 0xffff_ffff {
            1 => LineKind::Sms(number),
            2 => LineKind::Link(number),
            3 => LineKind::Memory(number),
            4 => LineKind::Process(number),
            _ => return None,
        };
        Some(Self {
            kind,
            process: u32::try_from(word(1)).ok()?,
            amount: word(2),
            from: Time(word(3)),
            to: Time(word(4)),
            command: word(5),
        })
    }
}

/// Returns all complete lines of a file; `None` if it has no ledger header or a malformed line.
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
    fn names_are_kept_up_to_eight_bytes() {
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
    fn lines_round_trip() {
        let line = |kind| Line {
            kind,
            process: 7,
            amount: u64::MAX,
            from: Time(1),
            to: Time(2),
            command: 3,
        };
        let lines = [
            LineKind::Sms(1),
            LineKind::Link(2),
            LineKind::Memory(3),
            LineKind::Process(4),
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
