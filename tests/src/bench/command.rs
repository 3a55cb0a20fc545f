//! Commands wrapped in other programs.

use std::ffi::OsStr;

use tokio::process::Command;

/// Returns the command wrapped in another program, which `prefix` names with its arguments.
pub(super) fn prefixed<const N: usize>(prefix: [&OsStr; N], command: &Command) -> Command {
    let command = command.as_std();
    let [program, arguments @ ..] = &prefix[..] else {
        return Command::new(command.get_program());
    };
    let mut prefixed = Command::new(program);
    let set = command
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    prefixed
        .args(arguments)
        .arg(command.get_program())
        .args(command.get_args())
        .envs(set);
    prefixed
}
