"""Words that say nothing about what is being looked for, in English and Chinese.

Besides the usual function words these are the words a question about the past is made of
("do you remember", 之前聊过), which are in every such question and in no answer.
"""

from __future__ import annotations

ENGLISH = frozenset(
    """a about above after again ago all also am an and any anybody anyone anything are aren as at
    be because been before being below between both but by can cannot could couldn did didn do
    does doesn doing don down during each either else ever every few for from further get gets
    getting go going got had hadn has hasn have haven having he her here hers herself him himself
    his how i if in into is isn it its itself just know let lets like ll look looking made make
    many may maybe me might mine more most much must my myself need needs no nor not now of off
    on once one only or other our ours ourselves out over own please put re really said same say
    says shall she should shouldn so some somebody someone something such sure take tell than
    that the their theirs them themselves then there these they thing things this those through
    thus to too under until up upon us use used using ve very want wanted was wasn way we well
    were weren what whatever when where which while who whoever whom whose why will with within
    without won would wouldn yes yet you your yours yourself
    chat chatted conversation discuss discussed earlier find last mention mentioned mentioning
    previous previously recall remember remind speak spoke talk talked talking time told""".split()
)

CHINESE_WORDS = tuple(
    sorted(
        """什么 怎么 怎样 怎么样 怎么办 为什么 为何 如何 哪个 哪些 哪里 哪儿 哪一 哪种 哪位
        几个 多少 多久 是否 是不是 有没有 能不能 可不可以 可以 能够 应该 需要 想要 已经
        曾经 正在 还是 或者 以及 并且 而且 但是 因为 所以 如果 虽然 然后 于是 这个 那个
        这些 那些 这里 那里 这样 那样 这种 那种 这次 那次 上次 那回 上回 那时 当时 之前
        以前 以后 之后 后来 最后 最近 前几天 前阵子 我们 你们 他们 她们 它们 咱们 自己
        大家 别人 一个 一些 一下 一种 一次 一遍 的话 时候 东西 事情 记得 记不记得 记住
        提到 提过 提及 说过 说到 讲过 聊过 聊到 谈过 谈到 讨论 讨论过 告诉 告诉过 请问
        麻烦 帮我 给我 跟我 和我 对我 和你 跟你 给你 知道 觉得 认为 叫做 叫什么 属于
        称为 进行 这么 那么 没有 不是 就是 只是 真的 其实 非常 比较 特别 现在 今天 现时
        一直 还有 关于 对于 由于 根据 通过 起来 出来 过来 下来 上来 出去 回来""".split(),
        key=len,
        reverse=True,
    )
)
"""Chinese stop words of two characters or more, the longest first."""

CHINESE_PARTICLES = frozenset(
    "的了吗呢吧啊呀嘛哦着么我你您他她它们这那哪谁是在和与及或就也都又很把被让给跟"
)
"""Characters that alone are stop words; words that begin or end with one survive elsewhere."""
