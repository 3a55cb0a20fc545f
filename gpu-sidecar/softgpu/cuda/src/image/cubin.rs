//! Reading of machine code for GPUs (cubin): an ELF file with one section of code for each kernel, and attributes.
//!
//! The vendor documents neither. Sections and attributes follow what its own `cuobjdump -elf` prints, and public readers of the
//! format; the architecture in the ELF flags is that of LLVM's `ELF.h` (`EF_CUDA_SM`).

use std::collections::BTreeMap;

use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader as _, SectionHeader as _, SectionTable};

use super::kernel::{KernelInfo, PARAMETERS_MAX};
use crate::occupancy::{REGISTERS_OF_A_THREAD, THREADS_OF_A_BLOCK};

/// A file of machine code.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Cubin {
    /// Number of the architecture, for example 90 for `sm_90`.
    pub(crate) architecture: u32,
    pub(crate) kernels: Vec<KernelInfo>,
}

/// Version of the ABI from which on the flags have the architecture in their second byte.
const ABI_OF_LATER_FLAGS: u8 = 8;

/// Architecture from which on a kernel's shared memory begins behind what is reserved.
const ARCHITECTURE_OF_RESERVED: u32 = 90;
/// Reserved shared memory before it, in bytes.
const SHARED_RESERVED: u32 = 1 << 10;

/// Attributes of `.nv.info` and `.nv.info.KERNEL`, with the names of `cuobjdump` (`EIATTR_…`).
mod attribute {
    pub(super) const MAX_THREADS: u8 = 0x05;
    pub(super) const FRAME_SIZE: u8 = 0x11;
    pub(super) const KPARAM_INFO: u8 = 0x17;
    pub(super) const REGCOUNT: u8 = 0x2f;
}

/// Reads machine code. `None` if it is no ELF file with sections.
pub(crate) fn read(bytes: &[u8]) -> Option<Cubin> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let order = header.endian().ok()?;
    let sections = header.sections(order, bytes).ok()?;
    let flags = header.e_flags(order).0;
    let architecture = if header.e_ident.abi_version >= ABI_OF_LATER_FLAGS {
        flags >> 8 & 0xff
    } else {
        flags & 0xff
    };
    let mut named: BTreeMap<&str, (&[u8], u64, u32)> = BTreeMap::new();
    for section in sections.iter() {
        let name = sections.section_name(order, section).ok();
        let Some(name) = name.and_then(|name| str::from_utf8(name).ok()) else {
            continue;
        };
        let data = section.data(order, bytes).unwrap_or_default();
        named.insert(name, (data, section.sh_size(order), section.sh_info(order)));
    }
    let whole = named.get(".nv.info").map_or(&[][..], |(data, ..)| *data);
    let symbols = symbols(&sections, order, bytes);
    let of_symbol = |wanted: u8| -> BTreeMap<&str, u32> {
        Attributes { rest: whole }
            .filter(|(attribute, _)| *attribute == wanted)
            .filter_map(|(_, value)| {
                let symbol = u32::from_le_bytes(value.get(..4)?.try_into().ok()?);
                let number = u32::from_le_bytes(value.get(4..8)?.try_into().ok()?);
                Some((*symbols.get(symbol as usize)?, number))
            })
            .collect()
    };
    let registers = of_symbol(attribute::REGCOUNT);
    let frames = of_symbol(attribute::FRAME_SIZE);
    // Each kernel has a constant bank for its parameters.
    let kernels = named
        .keys()
        .filter_map(|name| name.strip_prefix(".nv.constant0."));
    let kernels = kernels.filter_map(|name| {
        let mut info = KernelInfo::new(name, architecture);
        let section = |prefix: &str| named.get(&*format!("{prefix}{name}"));
        // The code's section has the registers in the last byte of its info, if the attribute is absent.
        let in_code = section(".text.").map_or(0, |(_, _, info)| info >> 24);
        let registers = registers.get(name).copied().or(Some(in_code));
        let registers = registers.filter(|own| *own > 0);
        info.registers = registers.map_or(info.registers, |own| own.min(REGISTERS_OF_A_THREAD));
        info.local_bytes = frames.get(name).copied().unwrap_or(0);
        let shared = section(".nv.shared.").map_or(0, |(_, size, _)| *size);
        let shared = u32::try_from(shared).unwrap_or(u32::MAX >> 1);
        info.shared_bytes = if architecture >= ARCHITECTURE_OF_RESERVED {
            shared.saturating_sub(SHARED_RESERVED)
        } else {
            shared
        };
        if let Some((data, ..)) = section(".nv.info.") {
            describe(data, &mut info)?;
        }
        info.bound_threads();
        Some(info)
    });
    Some(Cubin {
        architecture,
        kernels: kernels.collect(),
    })
}

/// Returns the symbols' names, in the order of the symbol table.
fn symbols<'a>(
    sections: &SectionTable<'a, FileHeader64<Endianness>>,
    order: Endianness,
    bytes: &'a [u8],
) -> Vec<&'a str> {
    let Ok(table) = sections.symbols(order, bytes, object::elf::SHT_SYMTAB) else {
        return Vec::new();
    };
    let names = table.iter().map(|symbol| {
        let name = table.symbol_name(order, symbol).unwrap_or_default();
        str::from_utf8(name).unwrap_or_default()
    });
    names.collect()
}

/// Adds what a kernel's own attributes state. `None` if its parameters have no valid layout.
fn describe(data: &[u8], info: &mut KernelInfo) -> Option<()> {
    let mut parameters = BTreeMap::new();
    for (attribute, value) in (Attributes { rest: data }) {
        let word = |at: usize| {
            let bytes = value.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        match attribute {
            attribute::KPARAM_INFO => {
                // Index (4 bytes), ordinal (2), offset (2), alignment and space, with the size from bit 18 on (4).
                let (place, size) = (word(4)?, word(8)?);
                let (ordinal, offset) = (place & 0xffff, (place >> 16) as usize);
                let size = (size >> 18) as usize;
                let is_valid = offset + size <= PARAMETERS_MAX;
                let parameter = is_valid.then_some(kernels::Parameter { offset, size })?;
                parameters.insert(ordinal as usize, parameter);
            }
            attribute::MAX_THREADS => {
                let threads = [word(0), word(4), word(8)].map(|own| own.unwrap_or(1).max(1));
                let product = threads.into_iter().fold(1_u32, u32::saturating_mul);
                info.threads_max = product.clamp(1, THREADS_OF_A_BLOCK);
            }
            _ => {}
        }
    }
    // A parameter that is missing would give the next one its place.
    let is_whole = parameters.keys().copied().eq(0..parameters.len());
    info.parameters = is_whole.then(|| parameters.into_values().collect())?;
    Some(())
}

/// Attributes with their values. Each begins with a format and an attribute (a byte each); format 4 has a length (2 bytes) and
/// that many bytes, the others have 2 bytes.
struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        const SIZED: u8 = 4;
        let [format, attribute, low, high, rest @ ..] = self.rest else {
            return None;
        };
        if *format != SIZED {
            self.rest = rest;
            return Some((*attribute, &[]));
        }
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let value = rest.get(..length)?;
        self.rest = &rest[length..];
        Some((*attribute, value))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn sized(attribute: u8, words: &[u32]) -> Vec<u8> {
        let length = u16::try_from(words.len() * 4).unwrap().to_le_bytes();
        let mut bytes = vec![4, attribute, length[0], length[1]];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    /// Returns the attributes of a kernel with an address and a number as parameters, and 128 threads a block.
    fn of_kernel() -> Vec<u8> {
        let mut data = vec![3, 0x1b, 0xff, 0];
        // The last parameter comes first, as in the toolkit's files.
        data.extend(sized(0x17, &[0, 8 << 16 | 1, 4 << 18 | 0x1f000]));
        data.extend(sized(0x17, &[0, 0, 8 << 18 | 0x1f000]));
        data.extend(sized(0x05, &[64, 2, 1]));
        data
    }

    /// Returns machine code with a kernel `k` of [`of_kernel`], with 2,048 bytes of shared memory in its section, 40 registers and 24
    /// bytes of local memory.
    pub(in super::super) fn sample(abi: u8, architecture: u32) -> Vec<u8> {
        const NOBITS: u32 = 8;
        let mut info = sized(0x2f, &[1, 40]);
        info.extend(sized(0x11, &[1, 24]));
        let mut symbols = vec![0; 48];
        symbols[24] = 1;
        // Name, kind, flags, information, contents or size.
        let sections: [(&str, u32, u32, Vec<u8>); 8] = [
            (".strtab", 3, 0, b"\0k\0".to_vec()),
            (".symtab", 2, 1, symbols),
            (".nv.info", 0x7000_0000, 0, info),
            (".nv.info.k", 0x7000_0000, 0, of_kernel()),
            (".nv.constant0.k", 1, 0, vec![0; 0x160]),
            (".text.k", 1, 7 << 24, vec![0; 16]),
            (".nv.shared.k", NOBITS, 0, Vec::new()),
            (".shstrtab", 3, 0, Vec::new()),
        ];
        let mut names = vec![0];
        let mut contents: Vec<u8> = Vec::new();
        let mut table = vec![0; 64];
        for (name, kind, information, bytes) in &sections {
            let name_at = u32::try_from(names.len()).unwrap();
            names.extend(name.bytes().chain([0]));
            let bytes = if *name == ".shstrtab" { &names } else { bytes };
            let (at, size) = match *kind {
                NOBITS => (64 + contents.len(), 2048),
                _ => (64 + contents.len(), bytes.len()),
            };
            contents.extend(bytes);
            // The table of symbols has its names in section 1.
            let (link, entry) = if *kind == 2 { (1_u32, 24_u64) } else { (0, 0) };
            table.extend(name_at.to_le_bytes());
            table.extend(kind.to_le_bytes());
            table.extend([0; 16]);
            table.extend((at as u64).to_le_bytes());
            table.extend((size as u64).to_le_bytes());
            table.extend(link.to_le_bytes());
            table.extend(information.to_le_bytes());
            table.extend(1_u64.to_le_bytes());
            table.extend(entry.to_le_bytes());
        }
        let flags = match abi {
            ABI_OF_LATER_FLAGS.. => architecture << 8 | 2,
            _ => 0x0050_0500 | architecture,
        };
        let mut file = b"\x7fELF\x02\x01\x01\x33".to_vec();
        file.extend([abi, 0, 0, 0, 0, 0, 0, 0]);
        file.extend([2, 0, 190, 0, 1, 0, 0, 0]);
        file.extend([0; 16]);
        file.extend((64 + contents.len() as u64).to_le_bytes());
        file.extend(flags.to_le_bytes());
        file.extend([64, 0, 56, 0, 0, 0, 64, 0, 9, 0, 8, 0]);
        assert_eq!(file.len(), 64);
        file.extend(contents);
        file.extend(table);
        file
    }

    #[test]
    fn a_file_states_architecture_and_resources() {
        for (abi, architecture, shared_bytes) in
            [(7, 70, 2048), (7, 80, 2048), (7, 90, 1024), (8, 100, 1024)]
        {
            let cubin = read(&sample(abi, architecture)).unwrap();
            assert_eq!(cubin.architecture, architecture);
            let parameter = |(offset, size)| kernels::Parameter { offset, size };
            let expected = KernelInfo {
                name: "k".to_owned(),
                parameters: [(0, 8), (8, 4)].map(parameter).to_vec(),
                registers: 40,
                shared_bytes,
                local_bytes: 24,
                threads_max: 128,
                architecture,
            };
            assert_eq!(cubin.kernels, [expected]);
        }
    }

    #[test]
    fn parameters_without_a_valid_layout_are_refused() {
        let mut info = KernelInfo::new("k", 90);
        assert_eq!(describe(&of_kernel(), &mut info), Some(()));
        // The first of two is missing, and one is larger than all may be.
        for data in [
            sized(0x17, &[0, 8 << 16 | 1, 4 << 18]),
            sized(0x17, &[0, 0x7fff << 16, 4 << 18]),
            sized(0x17, &[0, 0]),
        ] {
            assert_eq!(describe(&data, &mut info), None);
        }
        let file = sample(7, 90);
        for length in 0..file.len() {
            let _cut = read(&file[..length]);
        }
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] = 0xff;
            let _cubin = read(&changed);
        }
    }

    #[test]
    fn other_bytes_are_no_machine_code() {
        assert_eq!(read(b"\x7fELF"), None);
        assert_eq!(read(&[0; 64]), None);
    }
}
