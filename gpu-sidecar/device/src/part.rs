//! GPU models as data: four are built in, others are read from files of the same form.

use serde::Deserialize;

use crate::Span;
use crate::mig::Mig;

const MIB: u64 = 1024 * 1024;

/// Built-in models: V100, A100-80GB, H100, H200.
const BUILT_IN: [&str; 4] = [
    include_str!("../parts/v100.toml"),
    include_str!("../parts/a100-80gb.toml"),
    include_str!("../parts/h100.toml"),
    include_str!("../parts/h200.toml"),
];

/// Error in the data of a GPU model.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// The text has another form, or a key is unknown or missing; the message has the line and key.
    #[error("{0}")]
    Form(#[from] toml::de::Error),
    /// A property is out of range.
    #[error("{part}: {key}: {reason}")]
    Figure {
        /// Name of the model.
        part: String,
        /// Key of the property.
        key: String,
        /// Value of the property and the allowed range, as a text.
        reason: String,
    },
    /// No built-in model has this name.
    #[error("{name}: no such part; known: {known}")]
    Unknown {
        /// Name that was looked up.
        name: String,
        /// Names of the built-in models, separated by commas.
        known: String,
    },
}

/// A GPU model. Models from [`Part::parse`] and [`Part::named`] have their properties in range; a machine checks them again.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Part {
    /// Name of the model, such as `A100-80GB`.
    pub name: String,
    /// CUDA compute capability, major and minor.
    pub compute_capability: [u32; 2],
    /// Number of streaming multiprocessors.
    pub sms: u32,
    /// Size of the device memory, in MiB.
    pub memory_mib: u64,
    /// Bandwidth of the device memory, in bytes per second. A slice has a share in proportion to its memory slices.
    pub memory_bytes_per_second: u64,
    /// SMs that are assigned together: active-thread percentages are rounded up to a multiple.
    pub sm_unit: u32,
    /// Bandwidth to and from the host, in bytes per second for each direction.
    pub host_link_bytes_per_second: u64,
    /// Bandwidth to and from pageable host memory, in bytes per second for each direction: what the driver's own staging sustains.
    pub pageable_bytes_per_second: u64,
    /// Number of concurrent copies in one direction.
    pub copy_engines_each_way: u32,
    /// Time between the begin of a copy to or from the device and its first byte, in µs, in which it occupies its copy engine (M2.6).
    pub copy_setup_us: u64,
    /// Largest number of concurrent MPS clients. A slice has a share in proportion to its compute slices, which is an assumption:
    /// the vendor documents only that it shrinks.
    pub mps_clients: u32,
    /// Device memory of a context without allocations, in MiB.
    pub residue_mib: u64,
    /// Time slice of a process without MPS while others wait, in µs.
    pub time_slice_us: u64,
    /// Cost of switching between time slices, in µs.
    pub switch_us: u64,
    /// Times of calls for physical memory with mappings; all zero where a part states none.
    #[serde(default)]
    pub mappings: MappingTimes,
    /// MIG properties; `None` without MIG support.
    pub mig: Option<Mig>,
}

/// Time that the driver takes on the host for each handle of physical memory, in µs (`cuMemCreate` and its siblings).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MappingTimes {
    /// Creation of a handle.
    pub create_us: u64,
    /// Mapping of a handle at an address.
    pub map_us: u64,
    /// Setting of the access rights of a mapping.
    pub access_us: u64,
    /// Removal of a mapping.
    pub unmap_us: u64,
    /// Release of a handle.
    pub release_us: u64,
}

impl Part {
    /// Parses a model from TOML.
    ///
    /// # Errors
    ///
    /// Returns the line and key of an error, or the property that is out of range.
    pub fn parse(text: &str) -> Result<Self, PartError> {
        let part: Self = toml::from_str(text)?;
        part.check()?;
        Ok(part)
    }

    /// Returns the built-in model of this name, ignoring case; `A100` is short for `A100-80GB`.
    ///
    /// # Errors
    ///
    /// Returns [`PartError::Unknown`] with the names of the built-in models if there is none.
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

    /// Checks that all properties are in range.
    ///
    /// # Errors
    ///
    /// Returns the first property that is out of range.
    pub fn check(&self) -> Result<(), PartError> {
        let wrong = |key: &str, reason: String| PartError::Figure {
            part: self.name.clone(),
            key: key.to_owned(),
            reason,
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
                "pageable-bytes-per-second",
                self.pageable_bytes_per_second,
                1 << 50,
            ),
            // Zero is allowed.
            ("copy-setup-us", self.copy_setup_us.max(1), 60_000_000),
            ("create-us", self.mappings.create_us.max(1), 1_000_000),
            ("map-us", self.mappings.map_us.max(1), 1_000_000),
            ("access-us", self.mappings.access_us.max(1), 1_000_000),
            ("unmap-us", self.mappings.unmap_us.max(1), 1_000_000),
            ("release-us", self.mappings.release_us.max(1), 1_000_000),
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
                format!("{}: allowed: less than memory-mib", self.residue_mib),
            ));
        }
        match &self.mig {
            Some(mig) => mig
                .check(self.sms, self.memory_mib)
                .map_err(|(key, reason)| wrong(&key, reason)),
            None => Ok(()),
        }
    }

    /// Returns the size of the device memory in bytes.
    #[must_use]
    pub const fn memory_bytes(&self) -> u64 {
        self.memory_mib * MIB
    }

    /// Returns the device memory of a context without allocations, in bytes.
    #[must_use]
    pub const fn residue_bytes(&self) -> u64 {
        self.residue_mib * MIB
    }

    /// Returns the time slice of a process without MPS.
    #[must_use]
    pub const fn time_slice(&self) -> Span {
        Span(self.time_slice_us * 1_000)
    }

    /// Returns the time before the first byte of a copy.
    #[must_use]
    pub const fn copy_setup(&self) -> Span {
        Span(self.copy_setup_us * 1_000)
    }

    /// Returns the cost of switching between time slices.
    #[must_use]
    pub const fn switch(&self) -> Span {
        Span(self.switch_us * 1_000)
    }

    /// Returns the number of SMs of a process with this active-thread percentage, rounded as by the driver: up to whole units,
    /// and at least one unit. The percentage is in hundredths: 2,500 is a quarter.
    #[must_use]
    pub fn sms_of_percentage(&self, percent_hundredths: u32) -> u32 {
        sms_of_percentage(self.sms, self.sm_unit, percent_hundredths)
    }
}

/// Returns the number of SMs of a process with this active-thread percentage, in hundredths, on a GPU or slice with `sms` SMs,
/// which are assigned in units of `unit`; see [`Part::sms_of_percentage`].
#[must_use]
pub fn sms_of_percentage(sms: u32, unit: u32, percent_hundredths: u32) -> u32 {
    let requested = u64::from(sms) * u64::from(percent_hundredths.min(10_000));
    let unit = unit.max(1);
    let units = requested.div_ceil(u64::from(unit) * 10_000).max(1);
    u32::try_from(units)
        .unwrap_or(u32::MAX)
        .saturating_mul(unit)
        .min(sms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_parts_are_found_by_name() {
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
    fn errors_name_the_property_or_the_line() {
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
