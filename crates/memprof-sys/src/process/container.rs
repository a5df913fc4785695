//! Finds the container and the pod of a process from the names of its control groups.

use serde::{Deserialize, Serialize};

use crate::ids::Pid;
use crate::proc_dir;
use crate::procfs::{cgroups, controls_memory};

/// The container and pod of a process, as far as the names of its control groups identify them. The form is
/// that of saved profiles and of the HTTP API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The process's cgroup v2 group, or the group of the v1 memory controller if the v2 group is the root; `/` if both are the
    /// root.
    #[serde(rename = "cgroup")]
    pub group: String,
    /// Container id: 64 hexadecimal digits, or on ECS 32 hexadecimal digits and a number.
    #[serde(rename = "container", skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// UID of the Kubernetes pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

impl Container {
    /// Whether the process's control group is `group` or one of its descendants.
    pub fn is_below(&self, group: &str) -> bool {
        let inside = self.group.strip_prefix(group.trim_end_matches('/'));
        inside.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The container of a process; `None` if the process is gone.
    pub fn for_process(pid: Pid) -> Option<Container> {
        let groups = proc_dir::text(pid, "cgroup").ok()?;
        Some(Container::named_by(&groups))
    }

    /// Looks for names in the text of `/proc/PID/cgroup`.
    fn named_by(groups: &str) -> Container {
        let mut found = Container {
            group: group_of(groups).to_owned(),
            ..Container::default()
        };
        for (_, group) in cgroups(groups) {
            // The innermost name wins, because containers may run in containers.
            for name in group.rsplit('/') {
                found.id = found.id.or_else(|| container(name));
                found.pod = found.pod.or_else(|| pod(name));
            }
        }
        found
    }
}

/// The more specific control group: in a hybrid hierarchy, all processes may be in the root group of one of the versions.
fn group_of(groups: &str) -> &str {
    let named = |wanted: fn(&str) -> bool| {
        cgroups(groups).find(|(controllers, group)| wanted(controllers) && *group != "/")
    };
    let found = named(str::is_empty).or_else(|| named(controls_memory));
    found.map_or("/", |(_, group)| group)
}

fn is_hex(text: &str, digits: usize) -> bool {
    let lower = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == digits && text.bytes().all(lower)
}

/// The container id in a group's name: `ID`, `docker-ID.scope`, `cri-containerd-ID.scope`, `…:cri-containerd:ID` and similar.
fn container(name: &str) -> Option<String> {
    // The monitor process (conmon) of a CRI-O or Podman container is not in the container.
    if name.contains("conmon") {
        return None;
    }
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let id = name.rsplit(['-', ':']).next()?;
    let task = name.split_once('-').is_some_and(|(task, number)| {
        let digits = number.bytes().all(|b| b.is_ascii_digit());
        is_hex(task, 32) && !number.is_empty() && digits
    });
    match task {
        true => Some(name.to_owned()),
        false => is_hex(id, 64).then(|| id.to_owned()),
    }
}

/// The pod UID in a group's name: `podUID`, or `kubepods-burstable-podUID.slice` with `_` for each `-` of the UID. A static pod's
/// UID has no `-`.
fn pod(name: &str) -> Option<String> {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    let uid = match name.strip_prefix("pod") {
        Some(uid) => uid,
        None => name.rsplit_once("-pod")?.1,
    };
    let uid = uid.replace('_', "-");
    let parts: Vec<usize> = uid.split('-').map(str::len).collect();
    let known = matches!(parts[..], [32] | [8, 4, 4, 4, 12]);
    (known && is_hex(&uid.replace('-', ""), 32)).then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const POD: &str = "b15e0b8f-6d25-4d1f-9d2c-3a1f6f0a1b2c";

    fn parsed(group: &str) -> (Option<String>, Option<String>) {
        let Container { id, pod, .. } = Container::named_by(&format!("0::{group}\n"));
        (id, pod)
    }

    #[test]
    fn runtimes_name_their_containers() {
        let id = Some(ID.to_owned());
        let pod = Some(POD.to_owned());
        let slice = format!("kubepods-burstable-pod{}.slice", POD.replace('-', "_"));
        for (group, wanted) in [
            (format!("/docker/{ID}"), (id.clone(), None)),
            (
                format!("/system.slice/docker-{ID}.scope"),
                (id.clone(), None),
            ),
            (
                format!("/machine.slice/libpod-{ID}.scope/container"),
                (id.clone(), None),
            ),
            (
                format!(
                    "/kubepods.slice/kubepods-burstable.slice/{slice}/cri-containerd-{ID}.scope"
                ),
                (id.clone(), pod.clone()),
            ),
            (
                format!("/kubepods.slice/{slice}/crio-{ID}.scope"),
                (id.clone(), pod.clone()),
            ),
            (
                format!("/kubepods/besteffort/pod{POD}/{ID}"),
                (id.clone(), pod.clone()),
            ),
            (
                format!("/system.slice/containerd.service/{slice}:cri-containerd:{ID}"),
                (id.clone(), None),
            ),
            // As seen from a sibling cgroup namespace.
            (
                format!("/../../{slice}/cri-containerd-{ID}.scope"),
                (id.clone(), pod),
            ),
            (
                "/ecs/0123456789abcdef0123456789abcdef/0123456789abcdef0123456789abcdef-1234567890"
                    .into(),
                (
                    Some("0123456789abcdef0123456789abcdef-1234567890".into()),
                    None,
                ),
            ),
            (
                "/kubepods.slice/pod0123456789abcdef0123456789abcdef".into(),
                (None, Some("0123456789abcdef0123456789abcdef".into())),
            ),
        ] {
            assert_eq!(parsed(&group), wanted, "{group}");
        }
    }

    #[test]
    fn other_groups_are_none() {
        for group in [
            "/",
            "/user.slice/user-1000.slice/session-2.scope",
            "/system.slice/podman.service",
            "/system.slice/tripod-x.slice",
            &format!("/machine.slice/libpod-conmon-{ID}.scope"),
            &format!("/x/{}", &ID[1..]),
        ] {
            assert_eq!(parsed(group), (None, None), "{group}");
        }
        assert_eq!(Container::for_process(Pid(0)), None);
    }

    #[test]
    fn the_group_is_the_one_that_has_a_name() {
        for (groups, wanted) in [
            ("0::/a/b\n", "/a/b"),
            ("5:memory:/m\n1:name=systemd:/s\n0::/\n", "/m"),
            ("5:cpu,memory:/m\n0::/a:b\n", "/a:b"),
            ("5:cpu:/c\n0::/\n", "/"),
            ("", "/"),
        ] {
            assert_eq!(Container::named_by(groups).group, wanted, "{groups:?}");
        }
        let inside = Container::named_by("0::/a/b\n");
        for (group, is) in [("/", true), ("/a", true), ("/a/", true), ("/a/b", true)] {
            assert_eq!(inside.is_below(group), is, "{group}");
        }
        for group in ["/a/b/c", "/aa", "/b", "/a/bb"] {
            assert!(!inside.is_below(group), "{group}");
        }
    }

    #[test]
    fn any_hierarchy_of_version_1_may_name_it() {
        let groups = format!("12:memory:/docker/{ID}\n1:name=systemd:/\n0::/\n");
        assert_eq!(Container::named_by(&groups).id.as_deref(), Some(ID));
    }
}
