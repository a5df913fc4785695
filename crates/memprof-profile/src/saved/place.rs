//! The control group of a process, in the form of saved profiles.

use serde::{Deserialize, Serialize};

use memprof_sys::process::Container;

/// The control group, and the container and pod if the names of groups contain them.
#[derive(Serialize, Deserialize)]
pub struct ContainerLabels {
    cgroup: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
}

impl From<&Container> for ContainerLabels {
    fn from(container: &Container) -> ContainerLabels {
        ContainerLabels {
            cgroup: container.group.clone(),
            container: container.id.clone(),
            pod: container.pod.clone(),
        }
    }
}

impl From<ContainerLabels> for Container {
    fn from(place: ContainerLabels) -> Container {
        Container {
            group: place.cgroup,
            id: place.container,
            pod: place.pod,
        }
    }
}
