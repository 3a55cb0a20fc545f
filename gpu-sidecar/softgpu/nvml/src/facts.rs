//! Figures of GPU models beyond their parts' data, which programs query and nothing here depends on.
//!
//! Clocks, power limits and PCI ids are those of the vendor's data sheets and tools for the SXM boards; an unknown part
//! gets those of the H100.

/// Properties of a GPU model that NVML reports: PCI id, memory bus, power, clocks, NVLinks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// PCI device id in the upper half, NVIDIA's vendor id in the lower.
    pub(crate) device_id: u32,
    pub(crate) cores_per_sm: u32,
    pub(crate) memory_bus_bits: u32,
    pub(crate) pcie_generation: u32,
    /// Power in milliwatts: smallest limit, largest and default limit, consumption when idle.
    pub(crate) power_min: u32,
    pub(crate) power_max: u32,
    pub(crate) power_idle: u32,
    /// Clocks in MHz: SMs when idle, by default and at most, their step, memory, video engines.
    pub(crate) clock_idle: u32,
    pub(crate) clock_default: u32,
    pub(crate) clock_max: u32,
    pub(crate) clock_step: u32,
    pub(crate) clock_memory: u32,
    pub(crate) clock_video: u32,
    /// Number of NVLinks, and their version as NVML numbers it.
    pub(crate) nvlinks: u32,
    pub(crate) nvlink_version: u32,
    /// Whether faulty memory rows are remapped; otherwise pages are retired.
    pub(crate) remaps_rows: bool,
    /// Brand, as an `nvmlBrandType_t`: 2 Tesla, 14 NVIDIA.
    pub(crate) brand: u32,
    /// Architecture, as an `nvmlDeviceArchitecture_t`.
    pub(crate) architecture: u32,
}

/// Temperature of an idle GPU, in °C.
const DEGREES_IDLE: u32 = 32;
/// Temperature of a fully busy GPU, in °C.
const DEGREES_BUSY: u32 = 66;

impl Facts {
    /// Returns the figures of a part.
    pub(crate) fn of(part: &str, compute_capability: [u32; 2]) -> Self {
        let hopper = Self {
            device_id: 0x2330_10de,
            cores_per_sm: 128,
            memory_bus_bits: 5120,
            pcie_generation: 5,
            power_min: 200_000,
            power_max: 700_000,
            power_idle: 70_000,
            clock_idle: 345,
            clock_default: 1980,
            clock_max: 1980,
            clock_step: 15,
            clock_memory: 2619,
            clock_video: 1545,
            nvlinks: 18,
            nvlink_version: 6,
            remaps_rows: true,
            brand: 14,
            architecture: architecture(compute_capability),
        };
        match part {
            "V100" => Self {
                device_id: 0x1db5_10de,
                cores_per_sm: 64,
                memory_bus_bits: 4096,
                pcie_generation: 3,
                power_min: 150_000,
                power_max: 300_000,
                power_idle: 40_000,
                clock_idle: 135,
                clock_default: 1290,
                clock_max: 1530,
                clock_memory: 877,
                clock_video: 1372,
                nvlinks: 6,
                nvlink_version: 2,
                remaps_rows: false,
                brand: 2,
                ..hopper
            },
            "A100-80GB" => Self {
                device_id: 0x20b2_10de,
                cores_per_sm: 64,
                pcie_generation: 4,
                power_min: 100_000,
                power_max: 400_000,
                power_idle: 60_000,
                clock_idle: 210,
                clock_default: 1275,
                clock_max: 1410,
                clock_memory: 1593,
                clock_video: 1290,
                nvlinks: 12,
                nvlink_version: 4,
                ..hopper
            },
            "H200" => Self {
                device_id: 0x2335_10de,
                memory_bus_bits: 6144,
                clock_memory: 3201,
                ..hopper
            },
            _ => hopper,
        }
    }

    /// Returns the power at this utilization, in milliwatts.
    pub(crate) const fn power(&self, percent: u32) -> u32 {
        between(self.power_idle, self.power_max, percent)
    }

    /// Returns the temperature at this utilization, in °C.
    pub(crate) const fn degrees(percent: u32) -> u32 {
        between(DEGREES_IDLE, DEGREES_BUSY, percent)
    }

    /// Returns the SM clock at this utilization, in MHz.
    pub(crate) const fn clock(&self, percent: u32) -> u32 {
        if percent == 0 {
            self.clock_idle
        } else {
            self.clock_max
        }
    }

    /// Returns the rate of a PCIe lane in Mbit/s.
    pub(crate) const fn pcie_megabits(&self) -> u32 {
        match self.pcie_generation {
            3 => 8_000,
            4 => 16_000,
            _ => 32_000,
        }
    }

    /// Returns all possible SM clocks in MHz, in descending order.
    pub(crate) fn clocks(&self) -> Vec<u32> {
        let down = (self.clock_idle..=self.clock_max).rev();
        down.step_by(self.clock_step as usize).collect()
    }
}

const fn between(low: u32, high: u32, percent: u32) -> u32 {
    let percent = if percent > 100 { 100 } else { percent };
    low + (high - low) * percent / 100
}

const fn architecture(compute_capability: [u32; 2]) -> u32 {
    match compute_capability {
        [7, 5] => 6,
        [7, _] => 5,
        [8, 9] => 8,
        [8, _] => 7,
        [9, _] => 9,
        [major, _] if major >= 10 => 10,
        _ => u32::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stay_within_their_limits() {
        for part in ["V100", "A100-80GB", "H100", "H200", "other"] {
            let facts = Facts::of(part, [9, 0]);
            assert!(facts.power_min < facts.power_max, "{part}");
            assert_eq!(facts.power(0), facts.power_idle, "{part}");
            assert_eq!(facts.power(100), facts.power_max, "{part}");
            assert_eq!(facts.power(250), facts.power_max, "{part}");
            assert_eq!(facts.device_id & 0xffff, 0x10de, "{part}");
            let clocks = facts.clocks();
            assert_eq!(clocks[0], facts.clock_max, "{part}");
            assert!(clocks.contains(&facts.clock_default), "{part}");
            assert!(clocks.is_sorted_by(|one, next| one > next), "{part}");
        }
        assert_eq!(Facts::of("V100", [7, 0]).architecture, 5);
        assert_eq!(Facts::of("A100-80GB", [8, 0]).architecture, 7);
        let degrees = [0, 50, 100].map(Facts::degrees);
        assert_eq!(degrees, [32, 49, 66]);
    }
}
