//! A GPU's figures, as data: four parts come with the crate, others from files of the same form.

use serde::Deserialize;

use crate::Span;
use crate::mig::Mig;

const MIB: u64 = 1024 * 1024;

/// The parts that come with the crate: V100, A100-80GB, H100, H200.
const BUILT_IN: [&str; 4] = [
    include_str!("../parts/v100.toml"),
    include_str!("../parts/a100-80gb.toml"),
    include_str!("../parts/h100.toml"),
    include_str!("../parts/h200.toml"),
];

/// A part's data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// The text is not of the form, or a key is unknown or missing; the message says line and key.
    #[error("{0}")]
    Form(#[from] toml::de::Error),
    /// A figure is out of range.
    #[error("{part}: {key}: {why}")]
    Figure {
        /// The part.
        part: String,
        /// The key.
        key: String,
        /// What is allowed.
        why: String,
    },
    /// No part of this name comes with the crate.
    #[error("{name}: no such part; known: {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// Those there are.
        known: String,
    },
}

/// One kind of GPU. What is read with [`Part::parse`] or [`Part::named`] has its figures in range, and a machine looks at them
/// again.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Part {
    /// Its name, as `A100-80GB`.
    pub name: String,
    /// Major and minor.
    pub compute_capability: [u32; 2],
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Device memory, in MiB.
    pub memory_mib: u64,
    /// What its own memory reads or writes. A slice has its memory slices' part of it.
    pub memory_bytes_per_second: u64,
    /// SMs that are given out together: active-thread percentages are rounded up to a multiple.
    pub sm_unit: u32,
    /// To and from the host, each direction by itself.
    pub host_link_bytes_per_second: u64,
    /// Copies that run at once in one direction.
    pub copy_engines_each_way: u32,
    /// Clients that MPS takes at once. A slice takes its compute slices' part of them, as modelled: the vendor says only
    /// that it shrinks.
    pub mps_clients: u32,
    /// What a context keeps on the device without any allocation, in MiB.
    pub residue_mib: u64,
    /// How long a process runs before another has its turn, without MPS, in µs.
    pub time_slice_us: u64,
    /// What that change costs, in µs.
    pub switch_us: u64,
    /// How it can be sliced; `None`: not at all.
    pub mig: Option<Mig>,
}

impl Part {
    /// Reads a part from its TOML form.
    ///
    /// # Errors
    /// What is wrong, with its place.
    pub fn parse(text: &str) -> Result<Self, PartError> {
        let part: Self = toml::from_str(text)?;
        part.check()?;
        Ok(part)
    }

    /// The part of this name among those that come with the crate, in any case; `A100` stands for `A100-80GB`.
    ///
    /// # Errors
    /// There is none; the error names those there are.
    pub fn named(name: &str) -> Result<Self, PartError> {
        let mut known = Vec::new();
        for text in BUILT_IN {
            let part = Self::parse(text)?;
            let short = part.name.split('-').next().unwrap_or_default();
            if [part.name.as_str(), short]
                .iter()
                .any(|own| own.eq_ignore_ascii_case(name))
            {
                return Ok(part);
            }
            known.push(part.name);
        }
        Err(PartError::Unknown {
            name: name.to_owned(),
            known: known.join(", "),
        })
    }

    /// Looks whether all figures are in range.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), PartError> {
        let wrong = |key: &str, why: String| PartError::Figure {
            part: self.name.clone(),
            key: key.to_owned(),
            why,
        };
        for (key, value, max) in [
            ("sms", u64::from(self.sms), 10_000),
            ("memory-mib", self.memory_mib, 1 << 24),
            (
                "sm-unit",
                u64::from(self.sm_unit),
                u64::from(self.sms.max(1)),
            ),
            (
                "host-link-bytes-per-second",
                self.host_link_bytes_per_second,
                1 << 50,
            ),
            (
                "memory-bytes-per-second",
                self.memory_bytes_per_second,
                1 << 50,
            ),
            (
                "copy-engines-each-way",
                u64::from(self.copy_engines_each_way),
                64,
            ),
            ("switch-us", self.switch_us.max(1), 60_000_000),
            ("mps-clients", u64::from(self.mps_clients), 10_000),
            ("time-slice-us", self.time_slice_us, 60_000_000),
        ] {
            if !(1..=max).contains(&value) {
                return Err(wrong(key, format!("{value}: allowed: 1 to {max}")));
            }
        }
        if self.residue_mib >= self.memory_mib {
            return Err(wrong(
                "residue-mib",
                format!("{}: allowed: less than the memory", self.residue_mib),
            ));
        }
        match &self.mig {
            Some(mig) => mig
                .check(self.sms, self.memory_mib)
                .map_err(|(key, why)| wrong(&key, why)),
            None => Ok(()),
        }
    }

    /// Device memory in bytes.
    #[must_use]
    pub const fn memory_bytes(&self) -> u64 {
        self.memory_mib * MIB
    }

    /// What a context keeps, in bytes.
    #[must_use]
    pub const fn residue_bytes(&self) -> u64 {
        self.residue_mib * MIB
    }

    /// How long a process runs before another has its turn, without MPS.
    #[must_use]
    pub const fn time_slice(&self) -> Span {
        Span(self.time_slice_us * 1_000)
    }

    /// What that change costs.
    #[must_use]
    pub const fn switch(&self) -> Span {
        Span(self.switch_us * 1_000)
    }

    /// The SMs of a process with this active-thread percentage, as the driver rounds them: up to whole units, and
    /// at least one. `percent` in hundredths: 2,500 is a quarter.
    #[must_use]
    pub fn sms_of_percentage(&self, percent_hundredths: u32) -> u32 {
        sms_of_percentage(self.sms, self.sm_unit, percent_hundredths)
    }
}

/// See [`Part::sms_of_percentage`], for any number of SMs.
#[must_use]
pub fn sms_of_percentage(sms: u32, unit: u32, percent_hundredths: u32) -> u32 {
    let asked = u64::from(sms) * u64::from(percent_hundredths.min(10_000));
    let unit = unit.max(1);
    let units = asked.div_ceil(u64::from(unit) * 10_000).max(1);
    u32::try_from(units)
        .unwrap_or(u32::MAX)
        .saturating_mul(unit)
        .min(sms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_can_be_had_by_name() {
        for (name, sms) in [
            ("V100", 80),
            ("a100", 108),
            ("A100-80GB", 108),
            ("h100", 132),
            ("H200", 132),
        ] {
            assert_eq!(Part::named(name).unwrap().sms, sms, "{name}");
        }
        let error = Part::named("K80").unwrap_err().to_string();
        assert_eq!(
            error,
            "K80: no such part; known: V100, A100-80GB, H100, H200"
        );
    }

    #[test]
    fn percentages_are_rounded_up_to_whole_units() {
        let part = Part::named("V100").unwrap();
        for (percent, sms) in [
            (10_000, 80),
            (2_400, 20),
            (1_200, 10),
            (600, 6),
            (1, 2),
            (0, 2),
            (99_999, 80),
        ] {
            assert_eq!(part.sms_of_percentage(percent), sms, "{percent}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_named_with_its_place() {
        let good = BUILT_IN[0];
        let error = Part::parse(&good.replace("sms = 80", "sms = 0")).unwrap_err();
        assert_eq!(error.to_string(), "V100: sms: 0: allowed: 1 to 10000");
        let error = Part::parse(&good.replace("sms = 80", "cores = 80"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("unknown field `cores`") && error.contains("line 4"),
            "{error}"
        );
    }
}
