"""Prints the arguments of `podman run`, one a line, that give a container what a DaemonSet gives its pod.

    pod.py DAEMONSET.yaml DIRECTORY PROFILE IMAGE

The directory stands for the pod's secret. PROFILE is written if this machine's seccomp profile is too old. What this program knows no argument for is an error, so that nothing that the
DaemonSet asks for is left out. (Kubernetes alone needs the names, ports and probes.)
"""

import json
import sys

import yaml

SECCOMP = "/usr/share/containers/seccomp.json"
# What containerd permits to those who have the capability. The profile of podman 4.3 asks for CAP_SYS_ADMIN.
PERMITTED = {"bpf": "CAP_BPF", "perf_event_open": "CAP_PERFMON"}


def take(settings, name, wanted):
    """Takes a setting out, which must have one of these values."""
    value = settings.pop(name)
    if value not in wanted:
        sys.exit(f"{name}: {value!r} is none of {wanted}")
    return value


def nothing_left(settings, what):
    if settings:
        sys.exit(f"{what}: {settings} is not known")


def runtime_default(profile):
    """The arguments for the runtime's own filter, as runtimes of Kubernetes have it."""
    with open(SECCOMP, encoding="utf-8") as text:
        seccomp = json.load(text)
    rules = seccomp["syscalls"]
    if any(PERMITTED["bpf"] in (rule.get("includes") or {}).get("caps", []) for rule in rules):
        return
    for rule in rules:
        rule["names"] = [name for name in rule["names"] if name not in PERMITTED]
    for name, cap in PERMITTED.items():
        rules.append({"names": [name], "action": "SCMP_ACT_ALLOW", "args": [], "includes": {"caps": [cap]}, "excludes": {}})
    seccomp["syscalls"] = [rule for rule in rules if rule["names"]]
    with open(profile, "w", encoding="utf-8") as text:
        json.dump(seccomp, text)
    yield f"--security-opt=seccomp={profile}"


def security(context, profile):
    yield f"--user={context.pop('runAsUser')}:{context.pop('runAsGroup')}"
    if take(context, "privileged", [True, False]):
        yield "--privileged"
    if not take(context, "allowPrivilegeEscalation", [True, False]):
        yield "--security-opt=no-new-privileges"
    if take(context, "readOnlyRootFilesystem", [True, False]):
        yield from ["--read-only", "--read-only-tmpfs=false"]
    capabilities = context.pop("capabilities")
    yield from [f"--cap-drop={name}" for name in capabilities.pop("drop", [])]
    yield from [f"--cap-add={name}" for name in capabilities.pop("add", [])]
    nothing_left(capabilities, "capabilities")
    seccomp = take(context, "seccompProfile", [{"type": "RuntimeDefault"}, {"type": "Unconfined"}])
    if seccomp["type"] == "Unconfined":
        yield "--security-opt=seccomp=unconfined"
    else:
        yield from runtime_default(profile)
    nothing_left(context, "securityContext")


def arguments(pod, directory, profile, image):
    for name in ["automountServiceAccountToken", "tolerations"]:
        pod.pop(name)
    if take(pod, "hostPID", [True, False]):
        yield "--pid=host"
    (container,) = pod.pop("containers")
    for name in ["name", "image", "ports", "readinessProbe"]:
        container.pop(name)
    yield from security(container.pop("securityContext"), profile)
    limits = container.pop("resources")["limits"]
    yield f"--memory={limits.pop('memory').replace('Mi', 'm')}"
    nothing_left(limits, "limits")
    (volume,) = pod.pop("volumes")
    (mount,) = container.pop("volumeMounts")
    if volume["name"] != mount["name"] or volume["secret"]["defaultMode"] != 0o400:
        sys.exit(f"{volume}, {mount}: the secret is not mounted, or others may read it")
    yield f"--volume={directory}:{mount['mountPath']}" + (":ro" if mount["readOnly"] else "")
    program, *arguments = container.pop("command")
    nothing_left(container, "container")
    nothing_left(pod, "pod")
    yield from [f"--entrypoint={program}", image, *arguments]


def main():
    file, directory, profile, image = sys.argv[1:]
    with open(file, encoding="utf-8") as text:
        daemon_set = yaml.safe_load(text)
    print("\n".join(arguments(daemon_set["spec"]["template"]["spec"], directory, profile, image)))


main()
