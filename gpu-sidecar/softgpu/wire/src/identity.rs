//! Names and UUIDs of the GPUs and slices of a software GPU, common to the driver API and NVML.

use std::path::Path;

use device::machine::{Machine, SliceInfo};

use crate::config::{Config, ConfigError};

/// A CUDA device: a whole GPU or a MIG slice.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Number in the node. Each slice of a sliced GPU has one; the sliced GPU itself has none.
    pub number: u32,
    /// Index of the GPU it is or is part of, counted from 0.
    pub gpu: usize,
    /// UUID of the MIG device for a slice, of the GPU otherwise.
    pub uuid: [u8; 16],
    /// Number of SMs it has.
    pub sms: u32,
    /// Device memory in bytes, after scaling.
    pub memory: u64,
    /// Profile and placement of a slice; `None` for a whole GPU.
    pub slice: Option<SliceInfo>,
}

/// A physical GPU with its units.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// UUID of the GPU, stable for a folder and an index.
    pub uuid: [u8; 16],
    /// Product name as `cuDeviceGetName` returns it.
    pub name: &'static str,
    /// Indices of the GPU's units in [`Identity::units`].
    pub units: Vec<usize>,
}

/// GPUs and slices of a software GPU.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Physical GPUs, in the order of the configuration.
    pub gpus: Vec<Gpu>,
    /// Whole GPUs, and the slices of sliced ones.
    pub units: Vec<Unit>,
}

/// Returns the 64-bit FNV-1a hash of `bytes`, with `seed` mixed into the basis.
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

fn uuid(folder: &Path, gpu: usize, slice: Option<u32>) -> [u8; 16] {
    let text = format!("{}\n{gpu}\n{slice:?}", folder.display());
    let halves = [hash(0, text.as_bytes()), hash(1, text.as_bytes())];
    std::array::from_fn(|at| halves[at / 8].to_be_bytes()[at % 8])
}

/// Formats a UUID as `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
#[must_use]
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::new();
    for (at, byte) in uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn product(part: &str) -> &'static str {
    match part {
        "V100" => "Tesla V100-SXM2-32GB",
        "A100-80GB" => "NVIDIA A100-SXM4-80GB",
        "H100" => "NVIDIA H100 80GB HBM3",
        "H200" => "NVIDIA H200",
        _ => "NVIDIA Graphics Device",
    }
}

impl Identity {
    /// Returns the GPUs and slices of a folder with this configuration.
    ///
    /// # Errors
    /// Fails when the configuration is invalid.
    pub fn new(folder: &Path, config: &Config) -> Result<Self, ConfigError> {
        let node = config.node()?;
        let machine = Machine::new(&node)?;
        let folder = folder
            .canonicalize()
            .unwrap_or_else(|_| folder.to_path_buf());
        let mut gpus: Vec<_> = node
            .gpus
            .iter()
            .enumerate()
            .map(|(at, gpu)| Gpu {
                uuid: uuid(&folder, at, None),
                name: product(&gpu.part.name),
                units: Vec::new(),
            })
            .collect();
        let mut units = Vec::new();
        for number in 0..u32::try_from(machine.units()).unwrap_or(u32::MAX) {
            let Some(info) = machine.unit_info(number) else {
                break;
            };
            let slice = info.slice.as_ref().map(|_| number);
            gpus[info.gpu].units.push(units.len());
            units.push(Unit {
                number,
                gpu: info.gpu,
                uuid: uuid(&folder, info.gpu, slice),
                sms: info.sms,
                memory: info.memory,
                slice: info.slice,
            });
        }
        Ok(Self { gpus, units })
    }

    /// Returns the PCI domain, bus and device of a GPU.
    #[must_use]
    pub fn pci(gpu: usize) -> (u32, u32, u32) {
        (
            0,
            u32::try_from(gpu).unwrap_or(u32::MAX).saturating_add(1),
            0,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_and_slices_have_distinct_and_stable_uuids() {
        let config = Config::parse(
            "[[gpu]]\npart = \"H100\"\nslices = [\"3g.40gb\", \"4g.40gb\"]\n[[gpu]]\npart = \"H100\"",
        )
        .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let one = Identity::new(folder.path(), &config).unwrap();
        let again = Identity::new(folder.path(), &config).unwrap();
        let all = |identity: &Identity| {
            let units = identity.units.iter().map(|unit| unit.uuid);
            units.collect::<Vec<_>>()
        };
        assert_eq!(all(&one), all(&again));
        assert_eq!((one.gpus.len(), one.units.len()), (2, 3));
        assert_ne!(one.units[0].uuid, one.units[1].uuid);
        assert_ne!(one.units[0].uuid, one.gpus[0].uuid);
        assert_eq!(one.units[2].uuid, one.gpus[1].uuid);
        assert_eq!(one.gpus[0].units, [0, 1]);
        assert_eq!(uuid_text(&one.gpus[0].uuid).len(), 36);
    }
}
