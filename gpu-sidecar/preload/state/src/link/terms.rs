//! Terms of the agent, and the environment variables that follow from them.

use protocol::message::{FromAgent, OnLoss};

/// Terms sent by the agent in its welcome message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Behaviour of the gate when the agent is gone.
    pub on_loss: OnLoss,
    /// Value for `CUDA_VISIBLE_DEVICES`; empty if the variable is to stay unchanged.
    pub visible_devices: String,
    /// Value for `CUDA_MPS_PIPE_DIRECTORY`; empty without MPS.
    pub mps_pipe_directory: String,
    /// Share of the SMs, in hundredths of a percent; 10,000 for all.
    pub active_thread_hundredths: u32,
    /// Value for `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`, in bytes; 0 for none.
    pub mps_memory_limit: u64,
    /// Device memory limit of the pod, in bytes; 0 without a limit.
    pub memory_limit: u64,
    /// Bytes that stay allocated with a context, charged once; 0 if they have to be measured.
    pub context_residue: u64,
}

impl Terms {
    /// Returns the terms of a welcome message; `None` for any other message.
    #[must_use]
    pub fn of(message: FromAgent) -> Option<Self> {
        match message {
            FromAgent::Welcome {
                on_loss,
                visible_devices,
                mps_pipe_directory,
                active_thread_hundredths,
                mps_memory_limit,
                memory_limit,
                context_residue,
                pod: _,
            } => Some(Self {
                on_loss,
                visible_devices,
                mps_pipe_directory,
                active_thread_hundredths,
                mps_memory_limit,
                memory_limit,
                context_residue,
            }),
            _ => None,
        }
    }

    /// Returns the variables that the driver reads when it is initialised, with their values. `stated_percentage` is the value that
    /// the environment has of `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`: a smaller share of SMs is kept.
    #[must_use]
    pub fn environment(&self, stated_percentage: Option<&str>) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        if !self.visible_devices.is_empty() {
            variables.push(("CUDA_VISIBLE_DEVICES", self.visible_devices.clone()));
        }
        if self.mps_pipe_directory.is_empty() {
            return variables;
        }
        variables.push(("CUDA_MPS_PIPE_DIRECTORY", self.mps_pipe_directory.clone()));
        let hundredths = self.active_thread_hundredths;
        let stated = stated_percentage.and_then(|text| text.trim().parse::<f64>().ok());
        if hundredths < 10_000 && stated.is_none_or(|stated| stated * 100.0 > f64::from(hundredths))
        {
            let percentage = format!("{}.{:02}", hundredths / 100, hundredths % 100);
            variables.push(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage));
        }
        if self.mps_memory_limit > 0 {
            let mebibytes = self.mps_memory_limit.div_ceil(1 << 20);
            let limit = format!("0={mebibytes}M");
            variables.push(("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit));
        }
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms {
            on_loss: OnLoss::Keep,
            visible_devices: "GPU-1".to_owned(),
            mps_pipe_directory: "/run/mps".to_owned(),
            active_thread_hundredths: 2_505,
            mps_memory_limit: (5 << 20) + 1,
            memory_limit: 0,
            context_residue: 0,
        }
    }

    #[test]
    fn the_environment_has_device_pipe_share_and_limit() {
        let expected = [
            ("CUDA_VISIBLE_DEVICES", "GPU-1"),
            ("CUDA_MPS_PIPE_DIRECTORY", "/run/mps"),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25.05"),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=6M"),
        ];
        let variables = terms().environment(None);
        let variables: Vec<_> = variables.iter().map(|(n, v)| (*n, v.as_str())).collect();
        assert_eq!(variables, expected);
    }

    #[test]
    fn without_mps_only_the_device_is_set() {
        let terms = Terms {
            mps_pipe_directory: String::new(),
            ..terms()
        };
        assert_eq!(terms.environment(None).len(), 1);
        let terms = Terms {
            visible_devices: String::new(),
            ..terms
        };
        assert!(terms.environment(None).is_empty());
    }

    #[test]
    fn a_smaller_share_in_the_environment_is_kept() {
        let has_share = |stated| {
            let variables = terms().environment(stated);
            variables
                .iter()
                .any(|(name, _)| name.contains("PERCENTAGE"))
        };
        assert!(!has_share(Some(" 20.5 ")));
        assert!(!has_share(Some("25.05")));
        assert!(has_share(Some("25.06")));
        assert!(has_share(Some("all")));
    }

    #[test]
    fn all_sms_and_no_limit_set_nothing() {
        let terms = Terms {
            active_thread_hundredths: 10_000,
            mps_memory_limit: 0,
            ..terms()
        };
        assert_eq!(terms.environment(None).len(), 2);
    }

    #[test]
    fn only_a_welcome_has_terms() {
        assert_eq!(Terms::of(FromAgent::Pages), None);
        assert_eq!(Terms::of(FromAgent::Probe), None);
    }
}
