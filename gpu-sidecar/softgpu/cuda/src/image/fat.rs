//! Fat binaries: several forms of the same code, one of which fits the device.
//!
//! The layouts of a fat binary, its wrapper and its parts are not documented by the vendor; they follow the toolkit's
//! `fatbinary_section.h` and public readers of the format.

use std::fmt;
use std::io::Read as _;
use std::ops::Range;

use super::kernel::KernelInfo;
use super::{cubin, names_of, number_at, ptx, with_names};

/// Largest number of parts examined in a fat binary, which has one for each architecture and form, some dozens in all.
const PARTS_MAX: usize = 64;
/// Largest size of a part after decompression, in bytes.
const PART_MAX: u64 = 512 << 20;

/// A fat binary.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fat {
    bytes: Vec<u8>,
    parts: Vec<Part>,
}

/// A part of a fat binary.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    form: Form,
    /// Number of the architecture, for example 90 for `sm_90`.
    architecture: u32,
    packing: Packing,
    code: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Ptx,
    Cubin,
    Other(u16),
}

/// Compression of a part. Sizes are those after decompression, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Plain,
    Lz4(u64),
    Zstd(u64),
    Unknown,
}

/// Returns whether machine code for an architecture runs on a device with this one: the same major number, and no larger minor
/// number.
pub(super) const fn runs_code(architecture: u32, device: u32) -> bool {
    architecture / 10 == device / 10 && architecture <= device
}

impl Fat {
    /// Reads the list of parts.
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let mut parts = Vec::new();
        let mut from = usize::from(number_at(&bytes, 6).map_or(0, u16::from_le_bytes));
        let end = super::fat_length(&bytes).and_then(|length| usize::try_from(length).ok());
        let bytes_of_parts = &bytes[..end.unwrap_or(bytes.len()).min(bytes.len())];
        while parts.len() < PARTS_MAX
            && let Some((part, end)) = part(bytes_of_parts, from)
        {
            parts.push(part);
            from = end;
        }
        Self { bytes, parts }
    }

    /// Returns the kernels of the part which fits a device of this architecture best: machine code before PTX, later before
    /// earlier. `None` if no part that fits can be read.
    pub(crate) fn kernels(&self, device: u32) -> Option<Vec<KernelInfo>> {
        let fitting = |form, runs: &dyn Fn(u32) -> bool| {
            let parts = self.parts.iter().filter(|part| part.form == form);
            let mut parts: Vec<_> = parts.filter(|part| runs(part.architecture)).collect();
            parts.sort_by_key(|part| std::cmp::Reverse(part.architecture));
            parts
        };
        let cubins = fitting(Form::Cubin, &|own| runs_code(own, device));
        let texts = fitting(Form::Ptx, &|own| own <= device);
        cubins
            .into_iter()
            .chain(texts)
            .find_map(|part| self.kernels_of(part))
    }

    /// Returns the kernels of a part; `None` if it cannot be decompressed or read.
    fn kernels_of(&self, part: &Part) -> Option<Vec<KernelInfo>> {
        let code = self.code(part)?;
        Some(match part.form {
            Form::Ptx => ptx::read(&String::from_utf8_lossy(&code)).kernels,
            Form::Cubin => cubin::read(&code)?.kernels,
            Form::Other(_) => Vec::new(),
        })
    }

    fn code(&self, part: &Part) -> Option<Vec<u8>> {
        let code = self.bytes.get(part.code.clone()).unwrap_or_default();
        match part.packing {
            Packing::Plain => Some(code.to_vec()),
            Packing::Lz4(size) => {
                let size = usize::try_from(size).ok()?;
                let mut whole = vec![0; size];
                let written = lz4_flex::block::decompress_into(code, &mut whole).ok()?;
                (written == size).then_some(whole)
            }
            Packing::Zstd(size) => {
                let mut whole = Vec::new();
                let decoder = ruzstd::decoding::StreamingDecoder::new(code).ok()?;
                // One byte more, so that a size which is too small is noticed.
                decoder.take(size + 1).read_to_end(&mut whole).ok()?;
                (whole.len() as u64 == size).then_some(whole)
            }
            Packing::Unknown => None,
        }
    }
}

/// Returns the part that begins at an offset, and its end. Header: form (2 bytes), version (2), size of the header (4), size of
/// the code with padding (8), size of the compressed code (4); the architecture is at 28, flags (8) at 40, the size after
/// decompression (8) at 56.
fn part(bytes: &[u8], from: usize) -> Option<(Part, usize)> {
    const LZ4: u64 = 0x2000;
    const ZSTD: u64 = 0x8000;
    let head = bytes.get(from..)?;
    let form = match u16::from_le_bytes(number_at(head, 0)?) {
        1 => Form::Ptx,
        2 => Form::Cubin,
        other => Form::Other(other),
    };
    let header = usize::try_from(u32::from_le_bytes(number_at(head, 4)?)).ok()?;
    let length = usize::try_from(u64::from_le_bytes(number_at(head, 8)?)).ok()?;
    let packed = usize::try_from(u32::from_le_bytes(number_at(head, 16)?)).ok()?;
    let architecture = u32::from_le_bytes(number_at(head, 28)?);
    // A shorter header has neither.
    let later = |at| number_at(&head[..header.min(head.len())], at).map_or(0, u64::from_le_bytes);
    let (flags, size) = (later(40), later(56));
    let packing = match (packed, size <= PART_MAX) {
        (0, _) => Packing::Plain,
        (_, true) if flags & LZ4 != 0 => Packing::Lz4(size),
        (_, true) if flags & ZSTD != 0 => Packing::Zstd(size),
        _ => Packing::Unknown,
    };
    let begin = from.checked_add(header)?;
    let end = begin.checked_add(length)?;
    let code_end = match packing {
        Packing::Plain => end,
        _ => begin.checked_add(packed.min(length))?,
    };
    let part = Part {
        form,
        architecture,
        packing,
        code: begin.min(bytes.len())..code_end.min(bytes.len()),
    };
    Some((part, end.max(from + 1)))
}

impl fmt::Display for Fat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.parts.is_empty() {
            return f.write_str("a fat binary without parts");
        }
        f.write_str("a fat binary (")?;
        for (at, part) in self.parts.iter().enumerate() {
            let architecture = part.architecture;
            f.write_str(if at == 0 { "" } else { "; " })?;
            match part.form {
                Form::Ptx => write!(f, "PTX for compute_{architecture}")?,
                Form::Cubin => write!(f, "machine code for sm_{architecture}")?,
                Form::Other(form) => write!(f, "code of form {form} for sm_{architecture}")?,
            }
            // Decompression of all parts would take as long as loading them.
            if part.packing != Packing::Plain {
                f.write_str(", compressed")?;
            } else if let Some(kernels) = self.kernels_of(part) {
                f.write_str(&with_names(&names_of(&kernels)))?;
            } else {
                f.write_str(", which cannot be read")?;
            }
        }
        f.write_str(")")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A part for [`fat`]: form, architecture, code, flags, and the size after decompression if it is compressed.
    pub(in super::super) type Sample<'a> = (u16, u32, &'a [u8], u64, Option<usize>);

    /// Returns a fat binary with these parts.
    pub(in super::super) fn fat(parts: &[Sample<'_>]) -> Vec<u8> {
        let mut rest = Vec::new();
        for (form, architecture, code, flags, size) in parts {
            let mut head = [0; 64];
            head[..2].copy_from_slice(&form.to_le_bytes());
            head[4] = 64;
            let padded = code.len().next_multiple_of(8);
            head[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
            if let Some(size) = size {
                let packed = u32::try_from(code.len()).unwrap();
                head[16..20].copy_from_slice(&packed.to_le_bytes());
                head[56..64].copy_from_slice(&(*size as u64).to_le_bytes());
            }
            head[28..32].copy_from_slice(&architecture.to_le_bytes());
            head[40..48].copy_from_slice(&flags.to_le_bytes());
            rest.extend_from_slice(&head);
            rest.extend_from_slice(code);
            rest.resize(rest.len() + padded - code.len(), 0);
        }
        let mut all = super::super::FAT_BINARY.to_vec();
        all.extend_from_slice(&[1, 0, 16, 0]);
        all.extend_from_slice(&(rest.len() as u64).to_le_bytes());
        all.extend(rest);
        all
    }

    fn names(bytes: Vec<u8>, device: u32) -> Option<Vec<String>> {
        Some(names_of(&Fat::new(bytes).kernels(device)?))
    }

    #[test]
    fn the_part_that_fits_the_device_is_chosen() {
        let texts = ["old", "new", "later"].map(|name| format!(".entry {name}() {{}}"));
        let bytes = fat(&[
            (1, 70, texts[0].as_bytes(), 0, None),
            (1, 90, texts[1].as_bytes(), 0, None),
            (1, 100, texts[2].as_bytes(), 0, None),
        ]);
        assert_eq!(names(bytes.clone(), 60), None);
        assert_eq!(names(bytes.clone(), 80), Some(vec!["old".to_owned()]));
        assert_eq!(names(bytes.clone(), 90), Some(vec!["new".to_owned()]));
        assert_eq!(names(bytes, 120), Some(vec!["later".to_owned()]));
        // Machine code comes before PTX, if it is of the same major architecture.
        let code = cubin::tests::sample(7, 86);
        let bytes = fat(&[
            (1, 80, texts[0].as_bytes(), 0, None),
            (2, 86, &code, 0, None),
        ]);
        assert_eq!(names(bytes.clone(), 89), Some(vec!["k".to_owned()]));
        assert_eq!(names(bytes.clone(), 80), Some(vec!["old".to_owned()]));
        assert_eq!(names(bytes, 90), Some(vec!["old".to_owned()]));
        // A part which cannot be read is passed over.
        let bytes = fat(&[
            (1, 80, texts[0].as_bytes(), 0, None),
            (2, 86, b"\x7fELF", 0, None),
        ]);
        assert_eq!(names(bytes, 89), Some(vec!["old".to_owned()]));
    }

    #[test]
    fn compressed_parts_are_read() {
        let text = format!(".entry k() {{ {} }}", "ret; ".repeat(100));
        let lz4 = lz4_flex::block::compress(text.as_bytes());
        let zstd = ruzstd::encoding::compress_to_vec(
            text.as_bytes(),
            ruzstd::encoding::CompressionLevel::Fastest,
        );
        for (flag, code) in [(0x2000, lz4), (0x8000, zstd)] {
            let text_bytes = text.len();
            assert!(code.len() < text_bytes);
            let bytes = fat(&[(1, 80, &code, flag, Some(text.len()))]);
            assert_eq!(names(bytes.clone(), 90), Some(vec!["k".to_owned()]));
            let text = Fat::new(bytes).to_string();
            assert_eq!(text, "a fat binary (PTX for compute_80, compressed)");
            // Cut, of another compression, or with a false size.
            for (code, flag, size) in [
                (&code[..code.len() / 2], flag, text_bytes),
                (&code, 0, text_bytes),
                (&code, flag, 0),
                (&code, flag, text_bytes - 1),
                (&code, flag, text_bytes + 1),
                (&code, flag, 1 << 40),
            ] {
                let bytes = fat(&[(1, 80, code, flag, Some(size))]);
                assert_eq!(names(bytes, 90), None);
            }
        }
    }
}
