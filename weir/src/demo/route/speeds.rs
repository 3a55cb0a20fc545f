//! Speeds of the instances.

use std::str::FromStr;

/// Four instances at full speed.
const SPEEDS_DEFAULT: &str = "1,1,1,1";
/// Largest number of instances: a laptop runs three programs for each.
const INSTANCES_MAX: usize = 16;
const SPEED_MIN: f64 = 0.05;

/// Speeds of the instances, 0.05 to 1: a computation takes twice as long at speed 0.5 as at 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Speeds(Vec<f64>);

impl Speeds {
    pub(crate) fn get(&self) -> &[f64] {
        &self.0
    }

    /// Returns the total throughput relative to one instance at speed 1.
    pub(crate) fn sum(&self) -> f64 {
        self.0.iter().sum()
    }
}

impl Default for Speeds {
    fn default() -> Self {
        SPEEDS_DEFAULT.parse().expect("a list of speeds")
    }
}

impl FromStr for Speeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let each = text.split(',').map(|speed| speed.parse().ok());
        let speeds: Option<Vec<f64>> = each.collect();
        speeds
            .filter(|speeds| speeds.len() <= INSTANCES_MAX)
            .filter(|speeds| speeds.iter().all(|speed| (SPEED_MIN..=1.0).contains(speed)))
            .map(Self)
            .ok_or_else(|| {
                format!("allowed: 1 to {INSTANCES_MAX} numbers from {SPEED_MIN} to 1, separated by commas")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_numbers_separated_by_commas() {
        assert_eq!(Speeds::default().get(), [1.0; 4]);
        let unequal: Speeds = "1,1,0.4,0.4".parse().unwrap();
        assert_eq!(unequal.get(), [1.0, 1.0, 0.4, 0.4]);
        assert!((unequal.sum() - 2.8).abs() < 1e-9);
        for bad in [
            "",
            "1,",
            "0.01",
            "1.5",
            "nan",
            "1 1",
            &"1,".repeat(16),
            "-1",
        ] {
            assert!(bad.parse::<Speeds>().is_err(), "{bad}");
        }
    }
}
