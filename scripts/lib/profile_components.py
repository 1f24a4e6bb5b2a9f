# SPDX-License-Identifier: BSD-2-Clause
"""Which part of the system a stack belongs to, and tables of where the time goes.

A sample counts for the component of its innermost frame that has one: a spin lock or a list helper
is transparent and counts for the function that called it.
"""

import collections
import functools
import re

from flame import BPF, KERNEL, NOTE, Frame

IDLE = "idle"
USER_CODE = "user code"
KERNEL_OTHER = "kernel, other"

# Name, colour in the flame graphs, and whole names of kernel functions. The first match counts.
_TABLE = (
    ("profiler", "#d5d5d5", r"perf_.*|__perf_.*|ctx_sched_.*|bpf_trace_run.*|__bpf_trace_.*|"
     r"trace_(event|call)_.*|visit_groups_merge.*|event_sched_.*|__traceiter_.*"),
    ("copying payload", "#e05252", r"_?copy_(to|from)_(user|iter).*|__?copy_.*user.*|copy_user_.*|"
     r"rep_movs_.*|rep_stos_.*user|copyin|copyout|copy_page_(to|from)_iter.*|copy_folio.*|"
     r"(__)?skb_(copy_)?datagram_.*|simple_copy_to_iter|memcpy.*|__memcpy.*|skb_copy_bits|"
     r"skb_do_copy_data.*|csum_and_copy.*|csum_partial.*|skb_checksum|__skb_checksum.*"),
    ("splice and pipes", "#e58fb1", r"(?!skb_).*splice.*|pipe_.*|.*_pipe_buf.*|anon_pipe_.*|"
     r"sock_spd_release|iter_to_pipe|skb_splice_bits|generic_pipe_.*"),
    ("BPF system call, verifier", "#77a98a", r"bpf_check.*|do_check.*|__sys_bpf|bpf_prog_load|"
     r"__x64_sys_bpf|map_(update|delete|lookup)_elem|bpf_map_(update|delete|copy)_.*|"
     r"bpf_raw_tp_.*|bpf_prog_(free|put|pack|realloc|calc).*|bpf_jit_.*"),
    ("verdict program (BPF)", "#4fae74", r"bpf_.*|__bpf_.*|sk_skb_.*|htab_.*|array_map_.*|"
     r"ringbuf_.*|____?bpf_.*"),
    ("sockmap (psock)", "#8fd0a0", r"sk_psock_.*|sock_map_.*|sock_hash_.*|tcp_bpf_.*|"
     r"strp_.*|__?skb_send_sock.*|sendmsg_(un)?locked|tcp_read_skb|tcp_eat_skb|"
     r"sk_msg_.*|skb_to_sgvec.*|__skb_to_sgvec"),
    ("epoll", "#f2c94c", r"ep_.*|__ep_.*|eventpoll_.*|do_epoll_.*|__x64_sys_epoll.*|"
     r"__(se|do|arm64)_sys_epoll.*|reverse_path_.*"),
    ("lock contention", "#b03a3a", r"(native_)?queued_spin_lock_slowpath|"
     r"__pv_queued_spin_lock_slowpath|.*mutex_lock_slowpath.*|__mutex_lock.*|"
     r"rwsem_down_.*|osq_lock|queued_(read|write)_lock_slowpath|mutex_spin_on_owner"),
    ("scheduler and wake-ups", "#b79ae0", r"_{0,2}schedule|schedule_(idle|timeout|hrtimeout.*)|"
     r"preempt_schedule.*|try_to_wake_up|ttwu_.*|select_task_rq.*|select_idle_.*|enqueue_task.*|"
     r"enqueue_entity.*|dequeue_task.*|dequeue_entit.*|pick_.*task.*|pick_eevdf|pick_next_.*|"
     r"__pick_.*|update_(curr|load_avg|rq_clock|min_vruntime|cfs_.*)|update_entity_lag|"
     r"finish_task_switch.*|switch_mm.*|__switch_to.*|switch_fpu.*|context_switch|"
     r"prepare_task_switch|set_next_(entity|task.*)|put_prev_(entity|task.*)|resched_.*|"
     r"__resched_.*|wakeup_preempt.*|check_preempt_.*|wake_up_.*|__wake_up.*|wake_q_.*|"
     r"(autoremove|default|pollwake|woken)_wake.*|sock_def_(readable|write_space)|"
     r"sk_stream_write_space|newidle_balance|sched_(balance|tick|clock).*|load_balance|"
     r"place_entity|reweight_.*|avg_vruntime|yield_.*|psi_.*|cpuacct_.*|"
     r"call_function_single_.*|send_call_function_.*|native_(smp_send|send_call).*|"
     r"kick_process|sched_ttwu_.*|__sysvec_call_function.*|__flush_smp_call.*|flush_smp_call.*|"
     r"prepare_to_wait.*|finish_wait|add_wait_queue.*|remove_wait_queue|futex_.*|do_futex|"
     r"__x64_sys_futex|x2apic_send_.*|native_x2apic_.*|__x2apic_.*"),
    ("work queue", "#9c7bd0", r"worker_thread|process_one_work|process_scheduled_works|"
     r"_{0,2}queue_(delayed_)?work.*|insert_work|kick_pool|wq_worker_.*|"
     r"delayed_work_.*|mod_delayed_work.*|(get|put)_pwq.*|pwq_.*|kthread|worker_.*|"
     r"try_to_grab_pending|move_linked_works|__flush_work|set_work_.*|get_work_.*"),
    ("buffers (skb, slab, pages)", "#c8a27a", r"kmem_cache_.*|__?kmalloc.*|kmalloc_.*|kfree|"
     r"__slab_.*|___slab_.*|slab_.*|__?alloc_skb.*|skb_release_.*|skb_free_.*|consume_skb.*|"
     r"__?kfree_skb.*|sk_skb_reason_drop|napi_consume_.*|skb_attempt_.*|page_frag.*|__page_frag.*|"
     r"skb_page_frag_.*|sk_page_frag.*|alloc_pages.*|__alloc_pages.*|__alloc_frozen.*|"
     r"get_page_from_.*|free_unref_.*|free_frozen.*|__free_.*pages.*|free_pcp.*|rmqueue.*|"
     r"__rmqueue.*|put_page.*|__folio_put.*|folio_.*|__?mem_cgroup_.*|obj_cgroup_.*|"
     r"refill_.*stock|try_charge.*|sk_stream_alloc_.*|tcp_stream_alloc_skb|skb_clone|"
     r"__skb_clone|clear_page.*|kmemdup.*|build_skb.*|put_cpu_partial|get_partial.*|"
     r"__memcg_slab_.*|allocate_slab|discard_slab|__pskb_.*|pskb_.*|skb_try_coalesce|"
     r"__build_skb.*|kmalloc_reserve|skb_.*_frag.*|skb_splice_from_iter|memset.*|__memset.*|"
     r"page_counter_.*"),
    ("memory mapping and faults", "#d9b38c", r".*page_fault.*|handle_mm_fault|"
     r"__handle_mm_fault|do_(anonymous|wp|cow|read|shared)_.*|m(un|re)?map.*|do_m(un|re)?map.*|"
     r"(do_)?vmi?_.*|__?vma_.*|vma_.*|unmap_.*|zap_.*|mas_.*|.*_mas_.*|tlb_.*|flush_tlb.*|"
     r"__x64_sys_m(un|re|protect)?.*map|__x64_sys_brk|do_brk.*|vms_.*|lock_vma.*|free_pgtables|"
     r"vm_mmap.*|mtree_.*|mt_.*"),
    ("IP", "#7aa6d8", r"ip_.*|__ip_.*|ipv[46]_.*|ip6_.*|__ip6_.*|nf_.*|fib_.*|__fib.*|neigh_.*|"
     r"rt_.*|rt6_.*|dst_.*|arp_.*|icmp.*|inet_(rcv|ehash|lookup).*|ip_forward.*"),
    ("softirq and devices", "#5f8fc9", r"handle_softirqs|_{0,2}do_softirq.*|do_softirq.*|"
     r"__local_bh_.*|net_rx_action|net_tx_action|__napi_.*|napi_.*|process_backlog|"
     r"_{0,2}netif_.*|_{0,2}dev_(queue|hard|forward|kfree|consume|direct).*|dev_.*|veth_.*|"
     r"sch_direct_xmit|.*qdisc.*|validate_xmit_.*|enqueue_to_backlog|.*gro_.*|"
     r"run_ksoftirqd|smpboot_.*|raise_softirq.*|__raise_softirq.*|irq_exit.*|__irq_exit.*|"
     r"eth_.*|loopback_xmit|skb_defer_.*|tcf_.*|xmit_.*|rps_.*|get_rps_cpu|skb_network_.*|"
     r"__?skb_(flow|get_hash).*|packet_.*|kick_defer_.*|passthru_.*|harmonize_.*|pfifo_.*|"
     r"fq_.*|noqueue_.*|skb_scrub_.*|net_timestamp_.*|skb_tx_.*|skb_clone_tx_.*"),
    ("TCP and sockets", "#3f6fae", r"tcp_.*|__tcp_.*|inet_.*|inet6_.*|__inet.*|sk_.*|__sk_.*|"
     r"sock_.*|__sock_.*|_{0,2}lock_sock.*|_{0,2}release_sock.*|cubictcp_.*|bictcp_.*|reqsk_.*|"
     r"secure_tcp.*|skb_.*|__skb_.*|bbr_.*|reno_.*|tcpv6_.*|lock_timer_base_sock|"
     r"get_l4proto.*|__cookie.*|mptcp_.*"),
    ("time and timers", "#a8a8d8", r".*hrtimer.*|ktime_.*|read_tsc|tick_.*|mod_timer.*|"
     r"__mod_timer|run_timer_.*|call_timer_fn|pvclock_.*|kvm_clock_.*|timer_.*|__timer_.*|"
     r"timekeeping_.*|clockevents_.*|calc_wheel_.*|lock_timer_.*|enqueue_timer|"
     r"detach_if_.*|__run_timer.*|sysvec_apic_.*|lapic_.*|update_process_times|tmigr_.*|"
     r"del_timer.*|__x64_sys_clock_.*|do_nanosleep"),
    ("system call entry, files", "#9fb4c7", r"entry_SYSCALL.*|do_syscall_.*|syscall_.*|"
     r"__?x64_sys_.*|__se_sys_.*|__sys_.*|___sys_.*|ksys_.*|vfs_.*|__?f(d)?get.*|fput.*|"
     r"__fput.*|fdget.*|security_.*|apparmor_.*|aa_.*|selinux_.*|exit_to_user_mode.*|"
     r"import_.*|move_addr_.*|copy_msghdr_.*|sockfd_lookup.*|fd_install|alloc_(file|fd|empty).*|"
     r"new_sync_.*|do_(read|write|send|recv|iter).*v?|rw_verify_.*|fs?notify.*|sockfs_.*|"
     r"d_alloc.*|dput.*|iput.*|evict|new_inode.*|alloc_inode|task_work_.*|close_fd.*|filp_.*|"
     r"__close_.*|init_file|inode_.*|srso_.*|.*_untrain_ret|__check_object_size.*|"
     r"check_(heap_object|stack_object)|__virt_addr_valid|audit_.*|__audit_.*|rseq_.*|"
     r"__rseq_.*|fpregs_.*|switch_fpu_return|restore_fpregs.*"),
)
_IDLE_FRAMES = re.compile(r"(pv_)?native_safe_halt|default_idle|default_enter_idle|"
                          r"intel_idle.*|mwait_.*|acpi_.*idle.*|poll_idle|arch_cpu_idle|"
                          r"cpuidle_.*|cpu_idle_poll.*|do_idle|call_cpuidle")
_PATTERNS = tuple((name, re.compile(pattern)) for name, _colour, pattern in _TABLE)

COLOURS = {
    USER_CODE: "#f0a35e",
    **{name: colour for name, colour, _pattern in _TABLE},
    KERNEL_OTHER: "#b9c6d3",
    IDLE: "#eeeeee",
    "process": "#cfd3d8",
}


@functools.lru_cache(maxsize=None)
def component_of_frame(frame):
    """The component, or None for a kernel function that is not in the table."""
    if frame.place == BPF:
        return "verdict program (BPF)"
    if frame.place == NOTE:
        return None
    if frame.place != KERNEL:
        return USER_CODE
    name = re.sub(r"\.(part|constprop|isra|cold|llvm)\b.*$", "", frame.name)
    if _IDLE_FRAMES.fullmatch(name):
        return IDLE
    for component, pattern in _PATTERNS:
        if pattern.fullmatch(name):
            return component
    return None


def component_of_stack(stack):
    """The component of a stack (outermost frame first)."""
    for frame in reversed(stack):
        component = component_of_frame(frame)
        if component:
            return component
    return KERNEL_OTHER


def colour_class(frame):
    """For render_svg(): a key of COLOURS."""
    if frame.place == NOTE:
        return "process"
    return component_of_frame(frame) or KERNEL_OTHER


# What a sample passed through, wherever it ended: (text, names of functions, any of which counts).
PATHS = (
    ("receiving in softirq", ("net_rx_action",)),
    ("verdict on a received packet, with its redirect", ("sk_psock_verdict_data_ready",)),
    ("the verdict program itself", ("bpf_prog_culvert_verdict",)),
    ("queueing the redirected packet", ("sk_psock_skb_redirect",)),
    ("sending what was redirected (work queue)", ("sk_psock_backlog",)),
    ("sending (tcp_sendmsg)", ("tcp_sendmsg", "tcp_sendmsg_locked")),
    ("receiving (tcp_recvmsg)", ("tcp_recvmsg", "tcp_recvmsg_locked")),
    ("splice(2)", ("do_splice", "__do_splice")),
    ("waking up pollers (ep_poll_callback)", ("ep_poll_callback",)),
    ("epoll_wait(2)", ("do_epoll_wait", "ep_poll")),
    ("epoll_ctl(2)", ("do_epoll_ctl",)),
    ("switching threads (__schedule)", ("__schedule",)),
    ("changing the sockmap", ("sock_map_update_elem", "sock_map_update_common",
                              "sock_map_update_elem_sys", "sock_map_delete_elem")),
    ("connecting and accepting", ("tcp_v4_connect", "tcp_v6_connect", "inet_csk_accept",
                                  "tcp_conn_request", "tcp_check_req")),
    ("closing", ("tcp_close", "__tcp_close", "inet_shutdown")),
)


def path_shares(stacks, total):
    """[(text, share)] of PATHS for {stack: weight}; those that never occurred are left out."""
    sums = collections.Counter()
    for stack, weight in stacks.items():
        names = {frame.name for frame in stack}
        for text, functions in PATHS:
            if not names.isdisjoint(functions):
                sums[text] += weight
    return [(text, sums[text] / total) for text, _ in PATHS if sums[text]]


def component_table(samples_by_role):
    """{component: {role: weight}} of {role: {stack: weight}}."""
    table = {}
    for role, stacks in samples_by_role.items():
        for stack, weight in stacks.items():
            row = table.setdefault(component_of_stack(stack), collections.Counter())
            row[role] += weight
    return table


def top_symbols(stacks, count):
    """[(name, frame, own weight, weight with callees)], the largest own weight first.

    What counts for its caller, a spin lock for one, is listed for each such caller by itself:
    "name < caller".
    """
    own, inclusive = collections.Counter(), collections.Counter()
    for stack, weight in stacks.items():
        if not stack:
            continue
        own[_symbol(stack, len(stack) - 1)] += weight
        for symbol in {_symbol(stack, index) for index in range(len(stack))}:
            inclusive[symbol] += weight
    return [(*symbol, weight, inclusive[symbol]) for symbol, weight in own.most_common(count)]


def _symbol(stack, index):
    frame = stack[index]
    if frame.place != KERNEL or component_of_frame(frame) or index == 0:
        return frame.name, frame
    return f"{frame.name} < {stack[index - 1].name}", frame


def symbol_of(stack):
    """The innermost function, as top_symbols() names it."""
    return _symbol(stack, len(stack) - 1)[0]


def unresolved_share(stacks):
    """The share of kernel and of user frames without a name: (kernel, user)."""
    seen, unknown = collections.Counter(), collections.Counter()
    for stack, weight in stacks.items():
        for frame in stack:
            if frame.place == NOTE:
                continue
            place = KERNEL if frame.place in (KERNEL, BPF) else frame.place
            seen[place] += weight
            if frame.name.startswith("["):
                unknown[place] += weight
    return tuple(unknown[place] / seen[place] if seen[place] else 0.0 for place in (KERNEL, "user"))


def named(name):
    """A frame that is no function: a process or a state."""
    return Frame(name, NOTE, "")
